// Internal: the body of a message that arrives, checked against the size that its opening declares.
#pragma once

#include <troika/rpc/segment.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace troika::detail {

// Memory for bodies, aligned to 64 bytes and not initialised: what is not written takes no room.
// Memory of large bodies is kept for the next ones, as it costs as much to have pages made as to
// fill them. Thread safe.
class BodyMemory {
 public:
  BodyMemory();
  // Returns memory of at least that size, which may outlive this object. Throws std::bad_alloc.
  [[nodiscard]] std::shared_ptr<std::byte> take(std::uint64_t bytes);

 private:
  struct FreeBlocks;
  std::shared_ptr<FreeBlocks> free_blocks_;
};

class ReceivedBody {
 public:
  // Holds `bytes` bytes in `memory`. `source` names the sender in errors.
  ReceivedBody(std::uint64_t bytes, std::shared_ptr<std::byte> memory, std::string source);
  // Holds as many bytes as `into` has there.
  ReceivedBody(std::span<std::byte> into, std::string source);

  // Appends a chunk. Throws DataError if more arrives than was declared.
  void append(std::span<const std::byte> chunk);
  // Copies all of it from a segment's memory. Throws DataError if that is shorter.
  void read(SharedMemory& memory);
  // Throws DataError if less has arrived than was declared.
  void finish() const;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // Returns the owner of the memory; null where that is the caller's.
  [[nodiscard]] const std::shared_ptr<std::byte>& memory() const { return memory_; }

 private:
  std::shared_ptr<std::byte> memory_;
  std::span<std::byte> bytes_;
  std::size_t received_ = 0;
  std::string source_;
};

}  // namespace troika::detail
