// Random numbers that are a pure function of a key and a counter, so that any rank can draw the
// value of any element without drawing those before it: Philox-4x32-10 of Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3" (SC 2011). All arithmetic is scalar with floating-point
// contraction off, hence the same bits on every machine and layout.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace troika {

// Returns one block of four 32-bit words for a 64-bit key and a 128-bit counter.
[[nodiscard]] std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_high,
                                                  std::uint64_t counter_low);

// Returns a 64-bit key for a named stream. The same (seed, name) gives the same key everywhere
// (FNV-1a, mixed).
[[nodiscard]] std::uint64_t stream_key(std::uint64_t seed, std::string_view name);

// Mixes 64 bits so that every input bit reaches every output bit (splitmix64's finaliser).
[[nodiscard]] std::uint64_t mix_bits(std::uint64_t value);

// The stream of one key, addressed by index.
class RandomStream {
 public:
  explicit RandomStream(std::uint64_t key, std::uint64_t substream = 0)
      : key_(key), substream_(substream) {}

  // Returns 64 uniform bits for `index`.
  [[nodiscard]] std::uint64_t bits(std::uint64_t index) const;
  // Returns a uniform number in [0, 1) of 53 bits.
  [[nodiscard]] double uniform(std::uint64_t index) const;
  // Returns a uniform integer in [0, bound); bound > 0. Lemire's multiplication, bias below bound /
  // 2^64.
  [[nodiscard]] std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;
  // Returns a standard normal number (Box and Muller 1958, the cosine branch).
  [[nodiscard]] double normal(std::uint64_t index) const;

 private:
  std::uint64_t key_;
  std::uint64_t substream_;
};

}  // namespace troika
