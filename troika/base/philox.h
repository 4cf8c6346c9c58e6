// Internal. Philox4x32-10 for several counters at once: the rounds of one wait for each other,
// those of several are vectors. random.h has what everything else calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace troika {

template <std::size_t kLanes>
using PhiloxLanes = std::array<std::uint32_t, kLanes>;

// Returns what philox() of random.h does for each of `counters_low`: its four words, lane by lane.
template <std::size_t kLanes>
[[nodiscard]] inline std::array<PhiloxLanes<kLanes>, 4> philox_lanes(
    std::uint64_t key, std::uint64_t counter_high,
    const std::array<std::uint64_t, kLanes>& counters_low) {
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  PhiloxLanes<kLanes> c0, c1, c2, c3;
  for (std::size_t i = 0; i < kLanes; ++i) {
    c0[i] = static_cast<std::uint32_t>(counters_low[i]);
    c1[i] = static_cast<std::uint32_t>(counters_low[i] >> 32);
    c2[i] = static_cast<std::uint32_t>(counter_high);
    c3[i] = static_cast<std::uint32_t>(counter_high >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t p0 = static_cast<std::uint64_t>(kMultiplier0) * c0[i];
      const std::uint64_t p1 = static_cast<std::uint64_t>(kMultiplier1) * c2[i];
      c0[i] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c2[i] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<std::uint32_t>(p1);
      c3[i] = static_cast<std::uint32_t>(p0);
    }
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {c0, c1, c2, c3};
}

}  // namespace troika
