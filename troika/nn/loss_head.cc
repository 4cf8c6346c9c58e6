#include <ATen/ATen.h>
#include <troika/nn/gradient_product.h>
#include <troika/nn/loss_head.h>
#include <troika/ops/cross_entropy.h>

#include <algorithm>

namespace troika {
namespace {

// On the host, logits of about a million elements stay in the cache of most machines. On a device
// chunks are large enough for its matrix units, and the weight's gradient is passed over a few
// times only.
std::int64_t chunk_tokens(std::int64_t vocabulary, LogitChunks chunks) {
  constexpr std::int64_t kInCache = std::int64_t{1} << 20, kOnDevice = std::int64_t{1} << 27;
  constexpr std::int64_t kFewest = 64, kMostInCache = 4096, kMostOnDevice = 65536;
  return chunks == LogitChunks::kInCache
             ? std::clamp(kInCache / vocabulary, kFewest, kMostInCache)
             : std::clamp(kOnDevice / vocabulary, kFewest, kMostOnDevice);
}

template <typename Function>
void for_chunks(std::int64_t tokens, std::int64_t vocabulary, LogitChunks chunks,
                const Function& function) {
  const std::int64_t chunk = chunk_tokens(vocabulary, chunks);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    function(begin, std::min(chunk, tokens - begin));
  }
}

at::Tensor logits_of(const at::Tensor& input, const Parameter& weight) {
  return at::mm(input, weight.working_weight().t());
}

// A chunk of tokens of a split head: the logits that this rank has, and the numbers of all ranks.
struct SplitChunk {
  at::Tensor exponentials;  // what cross_entropy_slice_() leaves of the logits
  at::Tensor slices;
};

SplitChunk split_chunk(const at::Tensor& hidden, const Parameter& weight, const at::Tensor& targets,
                       const VocabularyCut& cut) {
  const std::int64_t first_class = cut.axis.slice_of(cut.vocabulary).first;
  SplitChunk chunk{logits_of(hidden, weight).to(weight.master_type()), {}};
  const at::Tensor own = ops::cross_entropy_slice_(chunk.exponentials, targets, first_class);
  chunk.slices = cut.axis.all_gather_each(own, {"head", "softmax of the vocabulary", cut.pass});
  return chunk;
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
                                  const Parameter& weight) {
  if (!input_gradient.defined()) return;
  at::Tensor slice = input_gradient.narrow(0, begin, logits_gradient.size(0));
  at::mm_out(slice, logits_gradient, weight.working_weight());
}

HeadLoss evaluate_split_head(const at::Tensor& input, const Parameter& weight,
                             const at::Tensor& targets, const VocabularyCut& cut) {
  HeadLoss loss;
  for_chunks(
      input.size(0), largest_slice(cut), cut.chunks, [&](std::int64_t begin, std::int64_t count) {
        const at::Tensor wanted = targets.narrow(0, begin, count);
        const SplitChunk chunk = split_chunk(input.narrow(0, begin, count), weight, wanted, cut);
        loss.add(ops::cross_entropy_of_slices(chunk.slices, wanted));
      });
  return loss;
}

HeadLoss differentiate_split_head(const at::Tensor& input, Parameter& weight,
                                  const at::Tensor& targets, double loss_scale,
                                  const VocabularyCut& cut, InputGradient input_gradient) {
  HeadLoss loss = begin_loss(input, input_gradient);
  const std::int64_t first_class = cut.axis.slice_of(cut.vocabulary).first;
  for_chunks(input.size(0), largest_slice(cut), cut.chunks,
             [&](std::int64_t begin, std::int64_t count) {
               const at::Tensor hidden = input.narrow(0, begin, count);
               const at::Tensor wanted = targets.narrow(0, begin, count);
               const SplitChunk chunk = split_chunk(hidden, weight, wanted, cut);
               loss.add(ops::cross_entropy_of_slices(chunk.slices, wanted));
               ops::cross_entropy_gradient_of_slice_(chunk.exponentials, wanted, first_class,
                                                     chunk.slices, cut.axis.rank(), loss_scale);
               const at::Tensor gradient = chunk.exponentials.to(input.scalar_type());
               loss.set_input_gradient(begin, gradient, weight);
               add_gradient_product(weight, gradient, hidden);
             });
  return loss;
}

HeadLoss evaluate_head(const at::Tensor& input, const Parameter& weight, const at::Tensor& targets,
                       LogitChunks chunks) {
  HeadLoss loss;
  for_chunks(input.size(0), weight.working_weight().size(0), chunks,
             [&](std::int64_t begin, std::int64_t count) {
               loss.add(ops::cross_entropy(logits_of(input.narrow(0, begin, count), weight),
                                           targets.narrow(0, begin, count)));
             });
  return loss;
}

HeadLoss differentiate_head(const at::Tensor& input, Parameter& weight, const at::Tensor& targets,
                            double loss_scale, LogitChunks chunks, InputGradient input_gradient) {
  HeadLoss loss = begin_loss(input, input_gradient);
  for_chunks(input.size(0), weight.working_weight().size(0), chunks,
             [&](std::int64_t begin, std::int64_t count) {
               const at::Tensor hidden = input.narrow(0, begin, count);
               const at::Tensor gradient = logits_of(hidden, weight);  // once it is overwritten
               loss.add(ops::cross_entropy_with_gradient_(gradient, targets.narrow(0, begin, count),
                                                          loss_scale));
               loss.set_input_gradient(begin, gradient, weight);
               add_gradient_product(weight, gradient, hidden);
             });
  return loss;
}

}  // namespace troika
