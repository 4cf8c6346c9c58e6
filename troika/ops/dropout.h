// Dropout whose mask is a pure function of where an element stands: the same on every layout,
// recomputed in the backward pass instead of stored, and restored exactly by recomputation and
// resumption.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika::ops {

struct DropoutKey {
  std::uint64_t stream;  // from base/random.h's stream_key(seed, name of the place in the model)
  std::int64_t step;
};

// Zeroes elements with `probability` and divides the rest by (1 - probability). `input` is
// [samples x elements per sample], in any shape; `sample_ids` int64 [samples]. Also the
// backward pass: apply it to the gradient. Returns `input` itself when probability is 0.
[[nodiscard]] at::Tensor dropout(const at::Tensor& input, const at::Tensor& sample_ids,
                                 double probability, const DropoutKey& key);

// The rows of a microbatch that a tensor holds: of [samples x rows_per_sample, dim] those from
// `first_row` on. They may begin and end in the middle of a sample.
struct RowSlice {
  std::int64_t first_row;
  std::int64_t rows_per_sample;
};

// Applies dropout to a slice [rows, dim] of the tokens. Its rows get the masks that dropout() of
// all of them would give.
[[nodiscard]] at::Tensor dropout_rows(const at::Tensor& input, const RowSlice& slice,
                                      const at::Tensor& sample_ids, double probability,
                                      const DropoutKey& key);

}  // namespace troika::ops
