#include "ranks/zero_bench.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <troika/base/random.h>
#include <troika/optim/gradient_norm.h>

#include <map>
#include <numeric>

namespace troika::test {
namespace {

constexpr std::int64_t kBenchSamples = 2;

at::Tensor draw_numbers(const std::string& what, std::int64_t count, std::int64_t below) {
  const RandomStream stream(stream_key(7, what));
  at::Tensor numbers = at::empty({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    numbers.mutable_data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(
        stream.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(below)));
  }
  return numbers;
}

}  // namespace

Sharding sharding_over(const Rank& rank, int stage, int width,
                       const std::shared_ptr<Recorder>& recorder) {
  EngineOptions options = rank.options();
  options.observers.recorder = recorder;
  options.reduction_order = EngineOptions::ReductionOrder::kInOrder;
  if (width == 0) width = rank.size();
  std::vector<int> shard, replicate;
  for (int i = 0; i < rank.size(); ++i) {
    if (i / width == rank.index() / width) shard.push_back(i);
    if (i % width == rank.index() % width) replicate.push_back(i);
  }
  Sharding sharding;
  sharding.stage = stage;
  sharding.shard = make_group("shard", shard, rank.index() % width, options);
  sharding.replicate = make_group("replicate", replicate, rank.index() / width, options);
  return sharding;
}

ModelOptions small_gpt() {
  GptOptions model;
  model.layers = 3;
  model.dim = 64;
  model.heads = model.kv_heads = 2;
  model.head_dim = 32;
  model.ffn_dim = 160;  // more than a chunk a matrix
  model.vocab_size = 301;
  model.seq_len = 16;
  return ModelOptions(gpt_kind(), model);
}

ModelOptions small_mlp() {
  return ModelOptions(mlp_kind(), MlpOptions{100, {200, 150, 120, 90}, 10});
}

OptimizerOptions optimizer_of(std::string_view kind) {
  OptimizerOptions options;
  options.kind = Chosen<OptimizerKind>::named(kind);
  if (options.kind.holds<MomentumOptions>()) options.kind.as<MomentumOptions>().momentum = 0.9;
  return options;
}

std::string Outcome::difference_from(const Outcome& other) const {
  if (tensors.size() != other.tensors.size()) return "the number of tensors";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    if (name != other.tensors[i].first || !tensor.equal(other.tensors[i].second)) return name;
  }
  return "";
}

ZeroBench::ZeroBench(const ZeroRun& run, Sharding sharding, int data_rank)
    : run_(run), data_rank_(data_rank) {
  const c10::InferenceMode no_autograd;
  sharding.microbatches_per_step = run.microbatches;
  stage_ = std::make_unique<UnitStage>(build_model(run.model, 3).units, 0);
  arena_ = std::make_unique<Arena>(stage_->specs(), run.types, std::move(sharding));
  stage_->bind(*arena_);
  arena_->initialize(3);
  axis_ = std::make_unique<DataAxis>(*arena_);
  sums_ = std::make_shared<ParameterSums>(*arena_);
  optimizer_ = make_optimizer(run.optimizer, *arena_, sums_);
}

Microbatch ZeroBench::microbatch(int index) const {
  const std::string key =
      std::to_string(steps_) + "/" + std::to_string(data_rank_) + "/" + std::to_string(index);
  const SampleSpec sample = traits_of(run_.model).sample;
  const std::int64_t inputs = kBenchSamples * sample.input().shape.front();
  Microbatch batch;
  if (sample.is_language()) {
    const std::int64_t below = sample.input().range;
    batch.tensors.set("inputs", draw_numbers("in " + key, inputs, below).view({kBenchSamples, -1}));
    batch.tensors.set("targets",
                      draw_numbers("out " + key, inputs, below).view({kBenchSamples, -1}));
  } else {
    const at::Tensor numbers = draw_numbers("in " + key, inputs, 1000);
    batch.tensors.set("inputs", (numbers.to(at::kFloat) / 500 - 1).view({kBenchSamples, -1}));
    batch.tensors.set("targets", draw_numbers("out " + key, kBenchSamples, sample.target().range));
  }
  batch.sample_ids = at::arange(kBenchSamples, at::kLong);
  batch.valid = batch.tensors[1].numel();
  batch.step = steps_;
  return batch;
}

double ZeroBench::step(UnitHooks* hooks) {
  const c10::InferenceMode no_autograd;
  if (hooks == nullptr) hooks = axis_.get();
  ++steps_;
  axis_->begin_step(run_.microbatches, Seconds(30));
  for (int i = 0; i < run_.microbatches; ++i) {
    Saved saved;
    saved.microbatch = microbatch(i);
    saved.loss_scale = 1.0 / 64;
    static_cast<void>(stage_->forward({}, saved, *hooks));
    stage_->backward(saved, {}, *hooks);
  }
  axis_->finish();
  const double norm = global_norm(*arena_, *sums_);
  norms_.push_back(norm);
  optimizer_->step({0.01, clip_factor(norm, run_.clip), steps_});
  axis_->after_update();
  return norm;
}

double ZeroBench::evaluate() {
  const c10::InferenceMode no_autograd;
  Saved saved;
  saved.microbatch = microbatch(99);
  saved.mode = Mode::kEvaluate;
  return stage_->forward({}, saved, *axis_).loss.read_sum();
}

std::vector<at::Tensor> ZeroBench::whole(const std::vector<at::Tensor>& by_shard) const {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : arena_->parameters()) {
    tensors.push_back(at::zeros({parameter->spec().local_count()}, by_shard.front().options()));
  }
  for (std::size_t i = 0; i < by_shard.size(); ++i) {
    const LocalShard& shard = arena_->local_shards()[i];
    tensors[shard.parameter].narrow(0, shard.begin, shard.count).copy_(by_shard[i]);
  }
  if (arena_->sharding().stage == 0) return tensors;
  for (const at::Tensor& tensor : tensors) {
    arena_->sharding().shard.all_reduce(tensor, ReduceOp::kSum, Rank::call("whole tensor")).wait();
  }
  return tensors;
}

Outcome ZeroBench::outcome() {
  const c10::InferenceMode no_autograd;
  Outcome outcome;
  const auto add = [&](const std::string& what, const std::vector<at::Tensor>& by_shard) {
    const std::vector<at::Tensor> tensors = whole(by_shard);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      outcome.tensors.emplace_back(what + " " + arena_->parameters()[i]->spec().name, tensors[i]);
    }
  };
  outcome.tensors.emplace_back("norms", at::tensor(norms_, at::kDouble));
  outcome.tensors.emplace_back("evaluation", at::full({1}, evaluate(), at::kDouble));
  std::vector<at::Tensor> masters;
  for (const LocalShard& shard : arena_->local_shards()) masters.push_back(shard.master);
  add("master", masters);
  std::map<std::string, std::vector<at::Tensor>> by_kind;
  for (const NamedState& state : optimizer_->state()) {
    by_kind[std::string(state.kind)].push_back(state.tensor);
  }
  for (const auto& [kind, tensors] : by_kind) add(kind, tensors);
  return outcome;
}

std::int64_t ZeroBench::arena_bytes() const {
  std::int64_t bytes = 0;
  for (const Storage kind :
       {Storage::kWorkingWeights, Storage::kMasters, Storage::kGradients, Storage::kState}) {
    bytes += arena_->bytes(kind);
  }
  return bytes;
}

}  // namespace troika::test
