// How fast the workers of a simulated job are: numbers beside which 1 is the speed of
// --pass-seconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Says how speeds are drawn, one for each worker, which keeps it:
//
//   constant(c)         c
//   uniform(a, b)       anywhere from a to b
//   lognormal(m, s)     m exp(s z), z normal: half of the workers are slower than m
//   list(a, b, ...)     as they stand, one for each worker
//
struct SpeedRule {
  enum class Kind { kConstant, kUniform, kLognormal, kList };
  Kind kind = Kind::kConstant;
  std::vector<double> numbers = {1};
};

// Reads one of the lines above. Throws UsageError.
[[nodiscard]] SpeedRule parse_speeds(std::string_view text);

// Returns `workers` speeds, above 0: the same ones for a seed, and those of the first workers
// whatever their number. Throws UsageError where a list has another length.
[[nodiscard]] std::vector<double> draw_speeds(const SpeedRule& rule, int workers,
                                              std::uint64_t seed);

}  // namespace troika
