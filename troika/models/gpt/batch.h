// The tensors of a GPT's microbatch, at the positions that its SampleSpec gives them.
#pragma once

#include <troika/models/gpt/options.h>
#include <troika/nn/stage.h>
#include <troika/nn/tensor_axis.h>

namespace troika {

// Returns token ids, int64 [samples, seq_len].
[[nodiscard]] inline const at::Tensor& input_ids_of(const Microbatch& microbatch) {
  return microbatch.tensors[0];
}
// Returns the next token of each, or kIgnoredTarget, int64 [samples, seq_len].
[[nodiscard]] inline const at::Tensor& targets_of(const Microbatch& microbatch) {
  return microbatch.tensors[1];
}
// Returns the document that each position belongs to, ascending along a sample, int64 [samples,
// seq_len]. Undefined unless packed documents must not attend to each other.
[[nodiscard]] inline at::Tensor document_ids_of(const Microbatch& microbatch) {
  return microbatch.tensors.value_or_none(2);
}

// Describes the tensor that flows between its units: this rank's slice of the tokens, [slice, dim].
[[nodiscard]] inline FlowSpec hidden_states(const Microbatch& microbatch, const TensorAxis& axis,
                                            const GptOptions& options) {
  return {"hidden", {axis.slice_of(input_ids_of(microbatch).numel()).count, options.dim}};
}

}  // namespace troika
