// Internal: the body of a message, cut into what is sent at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troika::detail {

// Returns the bytes of all parts together.
[[nodiscard]] std::uint64_t total_bytes(std::span<const std::span<const std::byte>> parts);

// Walks through the parts of a body, which must outlive it. Long parts are sent from where they
// lie; short ones are gathered.
class BodyChunks {
 public:
  explicit BodyChunks(std::span<const std::span<const std::byte>> parts) : parts_(parts) {}

  // Returns the next chunk of 1 to kChunkBytes bytes, which lasts until the next call; nothing at
  // the end.
  [[nodiscard]] std::optional<std::span<const std::byte>> next();

 private:
  [[nodiscard]] std::span<const std::byte> rest_of_part() const;
  void advance(std::size_t bytes);

  std::span<const std::span<const std::byte>> parts_;
  std::size_t offset_ = 0;  // within the first of parts_
  std::vector<std::byte> gathered_;
};

}  // namespace troika::detail
