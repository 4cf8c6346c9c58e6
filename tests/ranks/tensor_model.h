// For tests of models over the tensor axis: small GPTs of every kind, one microbatch of each kind,
// and gradients of whole parameters put together from what the ranks hold.
#pragma once

#include <ATen/ATen.h>
#include <troika/base/random.h>
#include <troika/models/gpt/gpt.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "ranks/rank_helper.h"

namespace troika::test {

enum class Tokens { kPlain, kIsolatedDocuments, kSomeIgnored, kNoneValid };

inline GptOptions small_gpt(std::int64_t heads, std::int64_t kv_heads) {
  GptOptions options;
  options.layers = 2;
  options.heads = heads;
  options.kv_heads = kv_heads;
  options.head_dim = 4;
  options.dim = 14;
  options.ffn_dim = 11;
  options.vocab_size = 251;
  options.seq_len = 37;
  return options;
}

inline at::Tensor draw_ids(const GptOptions& options, std::int64_t samples, std::string_view name) {
  const RandomStream stream(stream_key(11, name));
  const at::Tensor ids = at::empty({samples, options.seq_len}, at::kLong);
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    ids.mutable_data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(stream.below(
        static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(options.vocab_size)));
  }
  return ids;
}

inline Microbatch token_batch(const GptOptions& options, Tokens tokens, std::int64_t samples = 3) {
  Microbatch batch;
  batch.tensors.set("input_ids", draw_ids(options, samples, "inputs"));
  batch.tensors.set("targets", draw_ids(options, samples, "targets"));
  if (tokens == Tokens::kSomeIgnored) {  // unequally many of each sample
    batch.tensors[1].select(0, 0).narrow(0, 0, 30).fill_(kIgnoredTarget);
    batch.tensors[1].select(0, samples - 1).narrow(0, 20, 17).fill_(kIgnoredTarget);
  }
  if (tokens == Tokens::kNoneValid) batch.tensors[1].fill_(kIgnoredTarget);
  if (tokens == Tokens::kIsolatedDocuments) {
    batch.tensors.set("document_ids", at::zeros({samples, options.seq_len}, at::kLong));
    for (std::int64_t i = 0; i < samples; ++i) {  // borders differ from sample to sample
      batch.tensors[2].select(0, i).narrow(0, 9 + i, options.seq_len - 9 - i).add_(1);
      batch.tensors[2].select(0, i).narrow(0, 20 + i, options.seq_len - 20 - i).add_(1);
    }
  }
  batch.sample_ids = at::arange(40, 40 + samples, at::kLong);
  batch.valid = batch.tensors[1].ne(kIgnoredTarget).sum().item<std::int64_t>();
  batch.step = 3;
  batch.index = 2;
  return batch;
}

// A model with its parameters, which all differ from zero and one.
class TestModel {
 public:
  TestModel(const GptOptions& options, const ModelLayout& layout,
            NumericTypes types = {at::kDouble, at::kDouble})
      : stage_(build_gpt(options, 5, layout).units, 0,
               layout.checkpoint == ActivationCheckpoint::kFull ? Recompute::kUnits
                                                                : Recompute::kNone),
        arena_(stage_.specs(), types, Group()) {
    stage_.bind(arena_);
    arena_.initialize(3);
    for (const auto& parameter : arena_.parameters()) {
      ParameterSpec noise = parameter->spec();
      noise.initializer = Initializer::normal(0.1);
      parameter->master().add_(initial_values(noise, 99));
    }
    arena_.publish();
  }

  // The loss of a microbatch; its gradients are in the arena afterwards.
  double train(const Microbatch& batch, double loss_scale = 1) {
    arena_.release_gradients();
    UnitHooks hooks;
    Saved saved;
    saved.microbatch = batch;
    saved.loss_scale = loss_scale;
    const Activation output = stage_.forward({}, saved, hooks);
    EXPECT_EQ(output.loss.read_weight(), static_cast<double>(batch.valid));
    stage_.backward(saved, {}, hooks);
    return output.loss.read_sum();
  }

  // The same with input and weight gradients apart, as zero-bubble schedules have them.
  double train_apart(const Microbatch& batch) {
    arena_.release_gradients();
    UnitHooks hooks;
    Saved saved;
    saved.microbatch = batch;
    const Activation output = stage_.forward({}, saved, hooks);
    (void)stage_.backward_input(saved, {}, hooks);
    stage_.backward_weight(saved, hooks);
    return output.loss.read_sum();
  }

  double evaluate(const Microbatch& batch) {
    UnitHooks hooks;
    Saved saved;
    saved.microbatch = batch;
    saved.mode = Mode::kEvaluate;
    return stage_.forward({}, saved, hooks).loss.read_sum();
  }

  [[nodiscard]] const Arena& arena() const { return arena_; }
  [[nodiscard]] Arena& arena() { return arena_; }

 private:
  UnitStage stage_;
  Arena arena_;
};

// The slice of a whole tensor that a rank holds, as a view.
inline at::Tensor slice_of(const at::Tensor& whole, const ParameterSpec& spec) {
  if (!spec.slice) return whole;
  return whole.narrow(spec.slice->dim, spec.slice->begin, spec.slice->end - spec.slice->begin);
}

// Sums the gradients that are partial over the tensor axis, from their specs alone.
inline void sum_partial_gradients(const Arena& arena, const Group& tensor) {
  for (const auto& parameter : arena.parameters()) {
    const ParameterSpec& spec = parameter->spec();
    if (std::ranges::find(spec.partial_over, Axis::kTensor) == spec.partial_over.end()) continue;
    const at::Tensor whole = at::zeros(spec.shape, parameter->gradient().options());
    slice_of(whole, spec).copy_(parameter->gradient());
    tensor.all_reduce(whole, ReduceOp::kSum, Rank::call("partial gradients")).wait();
    parameter->gradient().copy_(slice_of(whole, spec));
  }
}

// By name: the whole gradient, of the elements that each rank counts.
inline std::map<std::string, at::Tensor> whole_gradients(const Arena& arena, const Group& tensor) {
  std::map<std::string, at::Tensor> wholes;
  for (const auto& parameter : arena.parameters()) {
    const ParameterSpec& spec = parameter->spec();
    const at::Tensor counted = at::zeros_like(parameter->gradient()).view({-1});
    const std::int64_t owned = spec.owned.value_or(counted.numel());
    counted.narrow(0, 0, owned).copy_(parameter->gradient().view({-1}).narrow(0, 0, owned));
    const at::Tensor whole = at::zeros(spec.shape, counted.options());
    slice_of(whole, spec).copy_(counted.view(spec.local_shape()));
    tensor.all_reduce(whole, ReduceOp::kSum, Rank::call("whole gradients")).wait();
    wholes[spec.name] = whole;
  }
  return wholes;
}

// The largest difference of a gradient, in units of what is allowed: tau max|g| + 1e-14 of the
// model's largest gradient.
struct Comparison {
  double worst = 0;
  std::string name;

  void see(double difference, double allowed, const std::string& of) {
    const double ratio = difference == 0 ? 0
                         : allowed == 0  ? std::numeric_limits<double>::infinity()
                                         : difference / allowed;
    if (ratio > worst || std::isnan(ratio)) {
      worst = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
      name = of;
    }
  }
};

inline double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

// Those of `model` (sums done), whole and as held here, against those of a model on one rank.
inline Comparison compare_gradients(const Arena& arena, const Arena& single, const Group& tensor,
                                    double tau = 1e-11) {
  double of_model = 0;
  for (const auto& parameter : single.parameters()) {
    of_model = std::max(of_model, largest(parameter->gradient()));
  }
  Comparison comparison;
  const auto wholes = whole_gradients(arena, tensor);
  EXPECT_EQ(wholes.size(), single.parameters().size());
  for (const auto& parameter : single.parameters()) {
    const std::string& name = parameter->spec().name;
    const at::Tensor& expected = parameter->gradient();
    const double allowed = tau * largest(expected) + 1e-14 * of_model;
    comparison.see(largest(wholes.at(name) - expected), allowed, name);
    const Parameter& held = arena.parameter(name);
    comparison.see(largest(held.gradient() - slice_of(expected, held.spec())), allowed, name);
  }
  return comparison;
}

}  // namespace troika::test
