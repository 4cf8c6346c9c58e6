// A copy of a short text, of a length that only the caller knows, in less than a call of memcpy
// takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

namespace troika {

namespace detail {
// Copies kSize to 2 kSize bytes as two pieces that may overlap. The compiler makes a load and a
// store of each.
template <std::size_t kSize>
inline void copy_both_ends(char* to, const char* from, std::size_t size) noexcept {
  char head[kSize], tail[kSize];
  std::memcpy(head, from, kSize);
  std::memcpy(tail, from + size - kSize, kSize);
  std::memcpy(to, head, kSize);
  std::memcpy(to + size - kSize, tail, kSize);
}
}  // namespace detail

// Copies as much of `text` as there is room for, and returns the number of bytes copied. The two
// must not overlap.
inline std::size_t copy_short(std::span<char> room, std::string_view text) noexcept {
  constexpr std::size_t kPiece = 16;
  const std::size_t taken = std::min(text.size(), room.size());
  char* to = room.data();
  const char* from = text.data();
  std::size_t size = taken;
  while (size > 2 * kPiece) {
    std::memcpy(to, from, kPiece);
    to += kPiece;
    from += kPiece;
    size -= kPiece;
  }
  if (size >= kPiece) {
    detail::copy_both_ends<kPiece>(to, from, size);
  } else if (size >= 8) {
    detail::copy_both_ends<8>(to, from, size);
  } else if (size >= 4) {
    detail::copy_both_ends<4>(to, from, size);
  } else if (size >= 2) {
    detail::copy_both_ends<2>(to, from, size);
  } else if (size == 1) {
    *to = *from;
  }
  return taken;
}

}  // namespace troika
