// Data sets that are generated, not stored: any sample is a pure function of the seed and its
// number, on every layout and machine. For trials, benchmarks and tests.
#pragma once

#include <troika/data/dataset.h>

#include <cstdint>
#include <memory>

namespace troika {

// How many held-out samples there are when data.held_out_fraction is above 0: a stream of their
// own.
inline constexpr std::int64_t kRandomHeldOutSamples = 256;

// A language model gets token ids uniform in [0, vocab_size), every target counting. The mlp gets
// standard normal features and, from a fixed random linear teacher, either the class whose score is
// the largest or all scores as values: learnable, and without noise. `valid` counts samples there.
[[nodiscard]] std::unique_ptr<Dataset> open_random_dataset(const DataRecipe& data,
                                                           const ModelRecipe& model,
                                                           std::uint64_t seed);

}  // namespace troika
