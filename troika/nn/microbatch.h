// The samples of one forward pass, as the loader hands them to the model.
#pragma once

#include <ATen/core/Tensor.h>

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
  // Language models: token ids, int64 [samples, seq_len]. Others: features, fp32 [samples,
  // input_dim].
  at::Tensor inputs;
  // Language models: the next token or kIgnoredTarget, int64 [samples, seq_len], already shifted.
  // Others: class index int64 [samples], or values fp32 [samples, output_dim].
  at::Tensor targets;
  // int64 [samples]: the sample's number in the run; keys the dropout masks.
  at::Tensor sample_ids;
  // int64 [samples, seq_len], ascending along a sample: which document a position belongs to.
  // Undefined unless packed documents must not attend to each other.
  at::Tensor document_ids;
  // Targets that count, over the microbatch.
  std::int64_t valid = 0;
  // The optimiser step, from 1; keys the dropout masks.
  std::int64_t step = 0;
  // Its number among those of this rank in the step, from 0, and the pipeline stage that it is in.
  int index = 0;
  int stage = 0;

  [[nodiscard]] std::int64_t samples() const { return inputs.defined() ? inputs.size(0) : 0; }
  [[nodiscard]] Pass pass() const { return {index, stage}; }
};

}  // namespace troika
