// The samples of one forward pass, as the loader hands them to the model.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/tensor_map.h>

#include <cstdint>

namespace troika {

// Target of a position that does not count in the loss.
inline constexpr std::int64_t kIgnoredTarget = -100;

// A microbatch's way through a stage, as labels name it.
struct Pass {
  int microbatch = 0;
  int stage = 0;
};

struct Microbatch {
  // What the model takes, in the order of its SampleSpec: each [samples, ...], with the shape of a
  // sample behind the first dimension. Optional ones may be missing at the end.
  TensorMap tensors;
  // int64 [samples]: the sample's number in the run; keys the dropout masks.
  at::Tensor sample_ids;
  // Targets that count, over the microbatch.
  std::int64_t valid = 0;
  // The optimiser step, from 1; keys the dropout masks.
  std::int64_t step = 0;
  // Its number among those of this rank in the step, from 0, and the pipeline stage that it is in.
  int index = 0;
  int stage = 0;

  [[nodiscard]] std::int64_t samples() const { return tensors.empty() ? 0 : tensors[0].size(0); }
  [[nodiscard]] Pass pass() const { return {index, stage}; }
};

}  // namespace troika
