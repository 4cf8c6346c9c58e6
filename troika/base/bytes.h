// Little-endian reading and writing of byte spans for our file formats. A reader checks every
// step against what is left, so that a truncated or hostile file ends in a DataError that names
// the file and the offset, never in an access out of bounds.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace troika {

// Return a + b and a * b, or nothing when the result does not fit T.
template <std::integral T>
[[nodiscard]] constexpr std::optional<T> checked_add(T a, std::type_identity_t<T> b) {
  T result{};
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}
template <std::integral T>
[[nodiscard]] constexpr std::optional<T> checked_mul(T a, std::type_identity_t<T> b) {
  T result{};
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// Convert a text to its bytes and back. Both return views, without a copy.
[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
[[nodiscard]] inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The types that ByteReader and ByteWriter carry: integers and floats of 1, 2, 4 or 8 bytes.
template <class T>
concept Scalar = (std::integral<T> && !std::same_as<T, bool>) || std::same_as<T, float> ||
                 std::same_as<T, double>;

namespace detail {
template <std::size_t kSize>
using UnsignedOf = std::conditional_t<
    kSize == 1, std::uint8_t,
    std::conditional_t<kSize == 2, std::uint16_t,
                       std::conditional_t<kSize == 4, std::uint32_t, std::uint64_t>>>;
}  // namespace detail

// Convert a value to its little-endian bytes and back, on any host.
template <Scalar T>
[[nodiscard]] constexpr std::array<std::byte, sizeof(T)> to_little_endian(T value) {
  const auto bits = std::bit_cast<detail::UnsignedOf<sizeof(T)>>(value);
  std::array<std::byte, sizeof(T)> bytes{};
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<std::uint64_t>(bits) >> (8 * i));
  }
  return bytes;
}
template <Scalar T>
[[nodiscard]] constexpr T from_little_endian(std::span<const std::byte, sizeof(T)> bytes) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bits |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return std::bit_cast<T>(static_cast<detail::UnsignedOf<sizeof(T)>>(bits));
}

// Reads a span from front to back. `source` (a path, a peer) is what errors name; the span must
// outlive the reader. Not thread safe.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string source)
      : bytes_(bytes), source_(std::move(source)) {}

  // Returns the next value. Throws DataError when fewer than sizeof(T) bytes are left.
  template <Scalar T>
  [[nodiscard]] T read() {
    return from_little_endian<T>(take(sizeof(T)).template first<sizeof(T)>());
  }
  // Returns a view of the next `count` bytes. Throws DataError when fewer are left.
  [[nodiscard]] std::span<const std::byte> take(std::uint64_t count);
  // Steps over `count` bytes. Throws DataError when fewer are left.
  void skip(std::uint64_t count) { static_cast<void>(take(count)); }
  // Returns a reader of the next `count` bytes, and steps over them. Its errors count offsets from
  // the start of this reader. Throws DataError when fewer are left.
  [[nodiscard]] ByteReader sub_reader(std::uint64_t count);

  [[nodiscard]] std::uint64_t offset() const { return base_ + position_; }
  [[nodiscard]] std::uint64_t remaining() const { return bytes_.size() - position_; }
  [[nodiscard]] const std::string& source() const { return source_; }

  // Throws DataError "SOURCE: MESSAGE at byte OFFSET".
  [[noreturn]] void fail(std::string_view message) const;

 private:
  std::span<const std::byte> bytes_;
  std::string source_;
  std::uint64_t base_ = 0;
  std::uint64_t position_ = 0;
};

// Builds a byte string. Not thread safe.
class ByteWriter {
 public:
  template <Scalar T>
  void write(T value) {
    write_bytes(to_little_endian(value));
  }
  void write_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void write_text(std::string_view text) { write_bytes(bytes_of(text)); }
  // Appends `filler` until the size is a multiple of `alignment` (> 0).
  void pad_to(std::size_t alignment, std::byte filler = std::byte{0});

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::vector<std::byte> release() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace troika
