// [data] kind = "random": samples that are generated, not stored. Any one is a pure function of the
// seed and its number, on every layout and machine. For trials, benchmarks and tests.
#pragma once

#include <troika/data/kind.h>

#include <cstdint>

namespace troika {

// A language model gets token ids uniform in [0, vocab_size), every target counting. Others get
// standard normal inputs and, from a fixed random linear teacher, either the class whose score is
// the largest or all scores as values: learnable, and without noise. `valid` counts samples there.
struct RandomOptions {
  double held_out_fraction = 0.01;

  bool operator==(const RandomOptions&) const = default;
};

// The number of held-out samples when held_out_fraction is above 0. They are a separate stream.
inline constexpr std::int64_t kRandomHeldOutSamples = 256;

[[nodiscard]] const DataKind& random_kind();

}  // namespace troika
