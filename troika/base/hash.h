// Checksums and content hashes: the same value on every machine. Neither resists an attacker; they
// find accidents and tell contents apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troika {

// A 64-bit hash of any number of pieces, equal for equal concatenations: XXH64 (Collet, the xxHash
// specification), so `xxhsum -H1` gives the same for a file with seed 0. Not thread safe.
class ContentHash {
 public:
  explicit ContentHash(std::uint64_t seed = 0);

  ContentHash& update(std::span<const std::byte> bytes);
  ContentHash& update(std::string_view text);
  // Returns the hash of all bytes so far. More may follow.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  static constexpr std::size_t kBlock = 32;
  void consume(const std::byte* block);

  std::array<std::uint64_t, 4> lanes_;
  std::array<std::byte, kBlock> pending_{};
  std::size_t pending_size_ = 0;
  std::uint64_t total_ = 0;
  std::uint64_t seed_;
};

[[nodiscard]] std::uint64_t content_hash(std::span<const std::byte> bytes, std::uint64_t seed = 0);
[[nodiscard]] std::uint64_t content_hash(std::string_view text, std::uint64_t seed = 0);

// Returns 16 lower-case hexadecimal digits.
[[nodiscard]] std::string hex(std::uint64_t value);

// Returns the CRC-32C (Castagnoli; RFC 3720, appendix B.4). Pass the result of the piece before to
// go on.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace troika
