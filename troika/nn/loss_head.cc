#include <ATen/ATen.h>
#include <troika/nn/gradient_product.h>
#include <troika/nn/loss_head.h>
#include <troika/ops/cross_entropy.h>

#include <algorithm>

namespace troika {
namespace {

// On the host, a chunk's logits are about a million where the vocabulary is small: these stay in
// the cache of most machines. Where it is large, logits pass through memory whatever a chunk has;
// but so do the weight and its gradient, once a chunk. So a microbatch has four chunks, unless they
// would have fewer than 256 tokens, or more than 512. By then logits weigh more than the weight.
std::int64_t most_tokens_on_host(std::int64_t tokens, std::int64_t vocabulary) {
  constexpr std::int64_t kInCache = std::int64_t{1} << 20, kInMemory = std::int64_t{1} << 25;
  constexpr std::int64_t kFewest = 256, kMost = 512, kMostInCache = 4096, kChunks = 4;
  const std::int64_t most = std::clamp(kInMemory / vocabulary, kFewest, kMost);
  return std::max(std::min(kInCache / vocabulary, kMostInCache),
                  std::clamp(tokens / kChunks, kFewest, most));
}

// On a device chunks are large enough for its matrix units.
std::int64_t most_tokens_on_device(std::int64_t vocabulary) {
  constexpr std::int64_t kLogits = std::int64_t{1} << 27, kFewest = 64, kMost = 65536;
  return std::clamp(kLogits / vocabulary, kFewest, kMost);
}

// Returns the tokens of a chunk, of which the last may have fewer: no chunk is a small remainder,
// for which the weight would be read as for a whole one.
std::int64_t chunk_tokens(std::int64_t tokens, std::int64_t vocabulary, LogitChunks chunks) {
  constexpr std::int64_t kStep = 32;  // rows that matrix units take at once
  const std::int64_t most = chunks == LogitChunks::kOnHost ? most_tokens_on_host(tokens, vocabulary)
                                                           : most_tokens_on_device(vocabulary);
  if (tokens <= most) return tokens;
  const std::int64_t count = (tokens + most - 1) / most;
  const std::int64_t even = (tokens + count - 1) / count;
  return std::min(most, (even + kStep - 1) / kStep * kStep);
}

// Calls `function(begin, logits)` for chunks of the rows of `input`, in order. The logits are in
// memory that the chunks share.
template <typename Function>
void for_chunks(const at::Tensor& input, const at::Tensor& weight, std::int64_t vocabulary,
                LogitChunks chunks, const Function& function) {
  const std::int64_t tokens = input.size(0);
  if (tokens == 0) return;
  const at::Tensor transposed = weight.t();
  const std::int64_t most = chunk_tokens(tokens, vocabulary, chunks);
  const at::Tensor buffer = at::empty({most, transposed.size(1)}, input.options());
  for (std::int64_t begin = 0; begin < tokens; begin += most) {
    const std::int64_t count = std::min(most, tokens - begin);
    at::Tensor logits = buffer.narrow(0, 0, count);
    at::mm_out(logits, input.narrow(0, begin, count), transposed);
    function(begin, logits);
  }
}

// Returns the statistics of all slices of a chunk's logits.
at::Tensor statistics_of_slices(const at::Tensor& logits, const at::Tensor& targets,
                                const VocabularyCut& cut) {
  const std::int64_t first_class = cut.axis.slice_of(cut.vocabulary).first;
  const at::Tensor own = ops::cross_entropy_slice(logits, targets, first_class);
  return cut.axis.all_gather_each(own, {"head", "softmax of the vocabulary", cut.pass});
}

HeadLoss begin_loss(const at::Tensor& input, InputGradient input_gradient) {
  HeadLoss loss;
  if (input_gradient == InputGradient::kWanted) loss.input_gradient = at::empty_like(input);
  return loss;
}

// Chunks are the same on every rank, whatever its slice.
std::int64_t largest_slice(const VocabularyCut& cut) {
  return even_split(cut.vocabulary, 0, cut.axis.size()).count;
}

}  // namespace

void HeadLoss::add(const at::Tensor& chunk) {
  sum = sum.defined() ? sum + chunk : chunk;
}

void HeadLoss::set_input_gradient(std::int64_t begin, const at::Tensor& logits_gradient,
                                  const at::Tensor& weight) {
  if (!input_gradient.defined()) return;
  at::Tensor slice = input_gradient.narrow(0, begin, logits_gradient.size(0));
  at::mm_out(slice, logits_gradient, weight);
}

HeadLoss evaluate_split_head(const at::Tensor& input, const Parameter& weight,
                             const at::Tensor& targets, const VocabularyCut& cut) {
  HeadLoss loss;
  for_chunks(
      input, weight.working_weight(), largest_slice(cut), cut.chunks,
      [&](std::int64_t begin, const at::Tensor& logits) {
        const at::Tensor wanted = targets.narrow(0, begin, logits.size(0));
        loss.add(ops::cross_entropy_of_slices(statistics_of_slices(logits, wanted, cut), wanted));
      });
  return loss;
}

HeadLoss differentiate_split_head(const at::Tensor& input, Parameter& weight,
                                  const at::Tensor& targets, double loss_scale,
                                  const VocabularyCut& cut, InputGradient input_gradient) {
  HeadLoss loss = begin_loss(input, input_gradient);
  const std::int64_t first_class = cut.axis.slice_of(cut.vocabulary).first;
  for_chunks(input, weight.working_weight(), largest_slice(cut), cut.chunks,
             [&](std::int64_t begin, const at::Tensor& logits) {
               const at::Tensor wanted = targets.narrow(0, begin, logits.size(0));
               const at::Tensor slices = statistics_of_slices(logits, wanted, cut);
               loss.add(ops::cross_entropy_of_slices(slices, wanted));
               ops::cross_entropy_gradient_of_slice_(logits, wanted, first_class, slices,
                                                     loss_scale);
               loss.set_input_gradient(begin, logits, weight.working_weight());
               add_gradient_product(weight, logits, input.narrow(0, begin, logits.size(0)));
             });
  return loss;
}

HeadLoss evaluate_head(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& targets,
                       LogitChunks chunks) {
  HeadLoss loss;
  for_chunks(input, weight, weight.size(0), chunks,
             [&](std::int64_t begin, const at::Tensor& logits) {
               loss.add(ops::cross_entropy(logits, targets.narrow(0, begin, logits.size(0))));
             });
  return loss;
}

HeadLoss differentiate_head(const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& targets, double loss_scale, LogitChunks chunks,
                            InputGradient input_gradient, const AddWeightGradient& add) {
  HeadLoss loss = begin_loss(input, input_gradient);
  for_chunks(input, weight, weight.size(0), chunks,
             [&](std::int64_t begin, const at::Tensor& logits) {
               const at::Tensor wanted = targets.narrow(0, begin, logits.size(0));
               loss.add(ops::cross_entropy_with_gradient_(logits, wanted, loss_scale));
               loss.set_input_gradient(begin, logits, weight);
               add(logits, input.narrow(0, begin, logits.size(0)));
             });
  return loss;
}

HeadLoss differentiate_head(const at::Tensor& input, Parameter& weight, const at::Tensor& targets,
                            double loss_scale, LogitChunks chunks, InputGradient input_gradient) {
  return differentiate_head(input, weight.working_weight(), targets, loss_scale, chunks,
                            input_gradient,
                            [&](const at::Tensor& logits, const at::Tensor& hidden) {
                              add_gradient_product(weight, logits, hidden);
                            });
}

}  // namespace troika
