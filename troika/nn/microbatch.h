// The samples of one forward pass, as the loader hands them to the model.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/tensor_map.h>

#include <cstdint>

namespace troika {

// Target of a position that does not count in the loss.
inline constexpr std::int64_t kIgnoredTarget = -100;

// The passage of a microbatch through a stage, as labels name it.
struct Pass {
  int microbatch = 0;
  int stage = 0;
};

// The number of low bits of a sample's number that hold its index in the arrays of its rank, where
// a program gives arrays and no data set: the bits above hold the rank.
inline constexpr int kSampleIndexBits = 40;

struct Microbatch {
  // The inputs of the model, in the order of its SampleSpec: each [samples, ...], with the shape of
  // a sample behind the first dimension. Optional ones may be missing at the end.
  TensorMap tensors;
  // The sample's number in the run, int64 [samples]; keys the dropout masks.
  at::Tensor sample_ids;
  // The number of targets that count, over the microbatch.
  std::int64_t valid = 0;
  // The optimiser step, from 1; keys the dropout masks.
  std::int64_t step = 0;
  // The number among this rank's microbatches of the step, from 0, and the current pipeline stage.
  int index = 0;
  int stage = 0;

  [[nodiscard]] std::int64_t samples() const { return tensors.empty() ? 0 : tensors[0].size(0); }
  [[nodiscard]] Pass pass() const { return {index, stage}; }
};

// Returns the microbatch with its tensors in memory of `device`. Copies from the host are queued on
// the current stream, from pinned memory.
[[nodiscard]] Microbatch to_device(Microbatch microbatch, at::Device device);
// Tells the memory of its tensors that the calling thread's current stream uses them.
void record_use(const Microbatch& microbatch);

}  // namespace troika
