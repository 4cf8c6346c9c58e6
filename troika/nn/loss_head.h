// The output head with its loss: logits of a chunk of tokens, their softmax cross-entropy and its
// gradients in one pass, so that the logits of a whole microbatch need not exist at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/function_ref.h>
#include <troika/nn/tensor_axis.h>
#include <troika/param/parameter.h>

#include <cstdint>

namespace troika {

// The number of logits held at once: few on the host, whose caches are small, and as many as keep a
// device busy. It depends on shapes alone, so that every machine rounds alike.
enum class LogitChunks { kOnHost, kOnDevice };

// Says whether a pass computes the gradient of its input. It is of no use where nothing below is
// trained.
enum class InputGradient { kWanted, kUnused };

struct HeadLoss {
  at::Tensor sum;  // of -log p(target), over the targets that count: a number; undefined if zero
  at::Tensor input_gradient;  // [tokens, dim]; undefined when only evaluated, or unused

  // Adds the sum of a chunk of tokens.
  void add(const at::Tensor& chunk);
  // Sets the input gradient of a chunk of tokens, from `begin`, where it is wanted.
  void set_input_gradient(std::int64_t begin, const at::Tensor& logits_gradient,
                          const at::Tensor& weight);
};

// Returns the loss alone. `input` is [tokens, dim], `weight` [vocabulary, dim], `targets` int64
// [tokens].
[[nodiscard]] HeadLoss evaluate_head(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& targets, LogitChunks chunks);

// Takes the gradients of a chunk's logits, [tokens, vocabulary], and their inputs, [tokens, dim]:
// the weight's gradient is the first, transposed, times the second.
using AddWeightGradient = FunctionRef<void(const at::Tensor& logits, const at::Tensor& input)>;

// Returns the loss and the gradient of `loss_scale` times the sum. Passes on what the weight's
// gradient is the sum of.
[[nodiscard]] HeadLoss differentiate_head(const at::Tensor& input, const at::Tensor& weight,
                                          const at::Tensor& targets, double loss_scale,
                                          LogitChunks chunks, InputGradient input_gradient,
                                          const AddWeightGradient& add);

// Returns the loss and the gradient of `loss_scale` times the sum. Adds the weight's gradient to
// its slot.
[[nodiscard]] HeadLoss differentiate_head(const at::Tensor& input, Parameter& weight,
                                          const at::Tensor& targets, double loss_scale,
                                          LogitChunks chunks,
                                          InputGradient input_gradient = InputGradient::kWanted);

// The slice of the vocabulary on a tensor axis whose ranks share it. `weight` is this rank's
// [slice_of(vocabulary).count, dim]. Every rank passes all tokens and all targets, and gets the
// loss of all, with the same bits everywhere. The input gradient is a partial sum. Ranks exchange
// three numbers a token, chunk by chunk, instead of logits.
struct VocabularyCut {
  TensorAxis axis;
  std::int64_t vocabulary = 0;  // of all ranks
  Pass pass = {};               // for labels
  LogitChunks chunks = LogitChunks::kOnHost;
};

[[nodiscard]] HeadLoss evaluate_split_head(const at::Tensor& input, const Parameter& weight,
                                           const at::Tensor& targets, const VocabularyCut& cut);
[[nodiscard]] HeadLoss differentiate_split_head(
    const at::Tensor& input, Parameter& weight, const at::Tensor& targets, double loss_scale,
    const VocabularyCut& cut, InputGradient input_gradient = InputGradient::kWanted);

}  // namespace troika
