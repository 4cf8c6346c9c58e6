// Faults that the parity matrix must notice: a training step put together from the library's parts
// agrees with one rank, and no longer does so once one thing in it is wrong. What a step leaves is
// written as a run folder, and judged as `troika verify` judges its runs.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <troika/data/kind.h>
#include <troika/models/gpt/options.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/options.h>
#include <troika/parallel/pipeline/executor.h>
#include <troika/sync/gradients/data_axis.h>
#include <troika/sync/step_sums.h>
#include <troika/train/dump.h>
#include <troika/train/model_part.h>
#include <troika/train/saved_model.h>
#include <troika/verify/comparison.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <utility>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

constexpr Seconds kTimeout{30};

enum class Fault {
  kNone,
  kNoDivision,            // gradients stay sums over the valid tokens
  kNoTensorSum,           // partial gradients of norms are not summed over the tensor axis
  kDivideByAccumulation,  // once more by the number of microbatches
  kSwapMicrobatches,      // the last stage takes two of them in another order
  kCountTiedTwice,        // the replica of a tied weight counts in the norm
};

// The axis that both ranks are on; of one rank each where it is none of them.
struct AxisGroups {
  Group data = {}, tensor = {}, pipeline = {}, embedding = {};
};

Recipe small_recipe() {
  Recipe recipe;
  recipe.seed = 7;
  auto& model = recipe.model.as<GptOptions>();
  model.layers = 2;
  model.heads = 3;
  model.kv_heads = 1;
  model.head_dim = 4;
  model.dim = 14;
  model.ffn_dim = 11;
  model.vocab_size = 251;
  model.seq_len = 37;
  recipe.data = DataOptions::named("random");
  recipe.train.global_batch_size = 7;
  recipe.train.micro_batch_size = 2;
  recipe.train.precision = Precision::kFloat64;
  recipe.train.grad_clip = 0.05;  // so that the norm is in the update
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  recipe.parallel.data = 1;
  return recipe;
}

std::unique_ptr<Dataset> dataset_of(const Recipe& recipe) {
  return open_dataset(recipe.data, traits_of(recipe.model).sample,
                      static_cast<std::uint64_t>(recipe.seed));
}

// What a step leaves on a rank.
struct FaultedStep {
  std::vector<NamedTensor> initial, gradients, parameters;
  std::vector<ParameterSpec> specs;
  double loss = 0;
  double norm = 0;
};

// The norm as it is where a weight on two stages counts as two.
double naive_norm(const Arena& arena, const Group& pipeline) {
  const at::Tensor squares = at::zeros({1}, at::kDouble);
  for (const LocalShard& shard : arena.local_shards()) squares.add_(shard.gradient.square().sum());
  pipeline.all_reduce(squares, ReduceOp::kSum, Rank::call("naive norm")).wait();
  return std::sqrt(squares.item<double>());
}

class Step {
 public:
  Step(Recipe recipe, const AxisGroups& groups, const Group& all, Fault fault)
      : recipe_(with_axes(std::move(recipe), groups)),
        groups_(groups),
        all_(all),
        fault_(fault),
        part_(recipe_, model_placement(recipe_, groups)) {
    part_.arena().initialize(static_cast<std::uint64_t>(recipe_.seed));
    for (const auto& parameter : part_.arena().parameters()) {
      outcome_.initial.push_back({parameter->spec().name, parameter->master().clone()});
    }
  }

  FaultedStep run() {
    const c10::InferenceMode no_autograd;
    std::vector<Microbatch> batches = microbatches();
    PipelineOptions options;
    options.type = at::kDouble;
    PipelineExecutor executor(part_.stages(), groups_.pipeline, options, nullptr);
    PartialGroups partial{groups_.tensor, groups_.embedding};
    if (fault_ == Fault::kNoTensorSum) partial.tensor = {};
    DataAxis axis(part_.arena(), partial, kTimeout);
    axis.begin_step(static_cast<int>(batches.size()), kTimeout);
    const LossTerms own = executor.train(batches, 1, axis, kTimeout, {}).loss;
    axis.finish();

    const bool contributes_loss = executor.has_last_stage() && groups_.tensor.rank() == 0;
    std::int64_t valid = 0;
    for (const Microbatch& batch : batches) valid += batch.valid;
    const StepPart part = contributes_loss ? StepPart{own, valid} : StepPart();
    const StepSums sums = StepReduction({all_}, part, "loss", kTimeout).wait();
    double scale = 1 / sums.weight;
    if (fault_ == Fault::kNoDivision) scale = 1;
    if (fault_ == Fault::kDivideByAccumulation) scale /= static_cast<double>(batches.size());
    outcome_.loss = sums.loss / sums.weight;
    update(scale);
    return outcome_;
  }

 private:
  static Recipe with_axes(Recipe recipe, const AxisGroups& groups) {
    recipe.parallel.data = groups.data.size();
    recipe.parallel.tensor = groups.tensor.size();
    recipe.parallel.pipeline = groups.pipeline.size();
    return recipe;
  }

  static ModelPlacement model_placement(const Recipe& recipe, const AxisGroups& groups) {
    ModelPlacement own;
    own.tensor = TensorAxis(groups.tensor, kTimeout);
    own.pipeline_rank = groups.pipeline.rank();
    own.sharding.shard = groups.data;
    own.sharding.microbatches_per_step = microbatches_per_step(recipe);
    return own;
  }

  [[nodiscard]] std::vector<Microbatch> microbatches() const {
    const auto dataset = dataset_of(recipe_);
    const IndexRange range =
        even_split(recipe_.train.global_batch_size, groups_.data.rank(), groups_.data.size());
    std::vector<Microbatch> batches =
        build_microbatches(*dataset, Split::kTrain, range, recipe_.train.micro_batch_size, 1);
    const bool on_last_stage = groups_.pipeline.rank() + 1 == groups_.pipeline.size();
    if (fault_ == Fault::kSwapMicrobatches && on_last_stage) std::swap(batches[0], batches[1]);
    return batches;
  }

  void update(double scale) {
    Arena& arena = part_.arena();
    const auto sums = std::make_shared<ParameterSums>(
        arena, SumGroups{groups_.tensor, groups_.pipeline, part_.parameter_names(), kTimeout});
    outcome_.norm = scale * (fault_ == Fault::kCountTiedTwice ? naive_norm(arena, groups_.pipeline)
                                                              : global_norm(arena, *sums));
    for (const auto& parameter : arena.parameters()) {
      outcome_.specs.push_back(parameter->spec());
      outcome_.gradients.push_back({parameter->spec().name, parameter->gradient() * scale});
    }
    make_optimizer(recipe_.optimizer, arena, sums)
        ->step({0.1, scale * clip_factor(outcome_.norm, recipe_.train.grad_clip), 1});
    for (const auto& parameter : arena.parameters()) {
      outcome_.parameters.push_back({parameter->spec().name, parameter->master()});
    }
  }

  Recipe recipe_;
  AxisGroups groups_;
  Group all_;
  Fault fault_;
  ModelPart part_;
  FaultedStep outcome_;
};

// Of whole tensors, the slices that a rank holds.
std::vector<NamedTensor> held_of(const std::vector<NamedTensor>& wholes,
                                 const std::vector<ParameterSpec>& specs) {
  std::vector<NamedTensor> slices;
  for (const ParameterSpec& spec : specs) {
    at::Tensor slice = std::ranges::find(wholes, spec.name, &NamedTensor::name)->tensor;
    if (spec.slice) {
      slice = slice.narrow(spec.slice->dim, spec.slice->begin, spec.slice->end - spec.slice->begin);
    }
    slices.push_back({spec.name, slice});
  }
  return slices;
}

// Of an outcome on one rank, what a rank with these parameters has to come to.
FaultedStep held_of(FaultedStep whole, const std::vector<ParameterSpec>& specs) {
  whole.initial = held_of(whole.initial, specs);
  whole.gradients = held_of(whole.gradients, specs);
  whole.parameters = held_of(whole.parameters, specs);
  return whole;
}

// A run folder as after one step, but with the slices that one rank holds.
void write_run(const std::filesystem::path& run, const Recipe& recipe, const FaultedStep& outcome) {
  const std::filesystem::path dump = dump_folder(run, 1);
  dump_tensors(dump, "parameters", outcome.initial);
  dump_tensors(dump, "gradients", outcome.gradients);
  const auto dataset = dataset_of(recipe);
  dump_batch(dump, *dataset, {0, recipe.train.global_batch_size}, 1);
  save_parameters(model_path(run), outcome.parameters);
  std::ofstream(run / "metrics.jsonl") << std::setprecision(17) << "{\"loss\": " << outcome.loss
                                       << ", \"grad_norm\": " << outcome.norm << "}\n";
}

// What a comparison with one rank finds first, here or on the other rank; empty if nothing.
std::string finding(const Rank& rank, const Recipe& recipe, const AxisGroups& groups,
                    const Group& all, Fault fault) {
  const FaultedStep expected = Step(recipe, {}, {}, Fault::kNone).run();
  const FaultedStep found = Step(recipe, groups, all, fault).run();
  const std::filesystem::path runs = rank.folder() / ("runs-" + std::to_string(rank.index()));
  write_run(runs / "expected", recipe, held_of(expected, found.specs));
  write_run(runs / "found", recipe, found);
  RunComparison comparison(parameter_order(recipe));
  const Tolerance tolerance{.tau = groups.tensor.size() > 1 ? 1e-11 : 1e-12};
  comparison.compare_runs(runs / "expected", runs / "found", std::array<std::int64_t, 1>{1},
                          tolerance);
  const std::string own = comparison.result().first_difference;
  const at::Tensor differs = at::full({1}, own.empty() ? 0 : 1, at::kLong);
  all.all_reduce(differs, ReduceOp::kMax, Rank::call("findings")).wait();
  if (!own.empty()) return own;
  return differs.item<std::int64_t>() == 0 ? "" : "on rank " + std::to_string(1 - rank.index());
}

RANK_TEST(Negative, WhatIsWrongWithTheScaleIsFound, 2) {
  const Group group = rank.group("data");
  const AxisGroups groups{.data = group};
  const Recipe recipe = small_recipe();
  EXPECT_EQ(finding(rank, recipe, groups, group, Fault::kNone), "");
  for (const Fault fault : {Fault::kNoDivision, Fault::kDivideByAccumulation}) {
    EXPECT_TRUE(finding(rank, recipe, groups, group, fault).starts_with("gradients of step 1: "))
        << static_cast<int>(fault);
  }
}

RANK_TEST(Negative, NormsThatAreNotSummedOverTheTensorAxisAreFound, 2) {
  const Group group = rank.group("tensor");
  const AxisGroups groups{.tensor = group};
  const Recipe recipe = small_recipe();
  EXPECT_EQ(finding(rank, recipe, groups, group, Fault::kNone), "");
  EXPECT_EQ(finding(rank, recipe, groups, group, Fault::kNoTensorSum),
            "gradients of step 1: model.layers.0.input_layernorm.weight");
}

RANK_TEST(Negative, SwappedMicrobatchesAreFound, 2) {
  const Group group = rank.group("pipeline");
  const AxisGroups groups{.pipeline = group, .embedding = rank.group("embedding")};
  const Recipe recipe = small_recipe();
  EXPECT_EQ(finding(rank, recipe, groups, group, Fault::kNone), "");
  EXPECT_TRUE(finding(rank, recipe, groups, group, Fault::kSwapMicrobatches)
                  .starts_with("gradients of step 1: "));
}

RANK_TEST(Negative, ATiedWeightThatCountsTwiceInTheNormIsFound, 2) {
  const Group group = rank.group("pipeline");
  const AxisGroups groups{.pipeline = group, .embedding = rank.group("embedding")};
  const Recipe tied = small_recipe();
  EXPECT_EQ(finding(rank, tied, groups, group, Fault::kCountTiedTwice), "grad_norm of step 1");
  // Without a replica there is nothing that could count twice: the naive norm is right.
  Recipe untied = tied;
  untied.model.as<GptOptions>().tied_embeddings = false;
  EXPECT_EQ(finding(rank, untied, {.pipeline = group}, group, Fault::kCountTiedTwice), "");
}

}  // namespace
}  // namespace troika::test
