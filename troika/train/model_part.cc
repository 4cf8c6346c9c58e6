#include <troika/base/index_range.h>
#include <troika/config/choices.h>
#include <troika/config/layout.h>
#include <troika/parallel/pipeline/cut.h>
#include <troika/schedule/generate.h>
#include <troika/train/job.h>
#include <troika/train/model_part.h>
#include <troika/train/precision.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

Recompute recompute_of(ActivationCheckpoint checkpoint) {
  return checkpoint == ActivationCheckpoint::kFull ? Recompute::kUnits : Recompute::kNone;
}

// Of one microbatch: enough to see where stages lie and what is computed apart.
Schedule smallest_schedule(const ParallelRecipe& parallel) {
  return make_schedule(name_of(parallel.pipeline_schedule),
                       {static_cast<int>(parallel.pipeline),
                        static_cast<int>(virtual_stages_per_rank(parallel)), 1});
}

}  // namespace

std::vector<int> cut_of(const ParallelRecipe& parallel, const ModelFacts& facts) {
  if (parallel.pipeline > 1 && !parallel.stage_units.empty()) {
    return cut_by_hand(parallel.stage_units);
  }
  return cut_by_cost(facts.unit_flops,
                     static_cast<int>(parallel.pipeline * virtual_stages_per_rank(parallel)));
}

std::vector<ParameterSpec> parameters_of(const Model& model) {
  std::vector<ParameterSpec> parameters;
  for (const auto& unit : model.units) {
    for (ParameterSpec& spec : unit->specs()) {
      if (spec.tied_to.empty() && !spec.tied_replica) parameters.push_back(std::move(spec));
    }
  }
  std::ranges::sort(parameters, {}, &ParameterSpec::name);
  return parameters;
}

std::vector<int> stages_of(const ParallelRecipe& parallel, int rank) {
  if (parallel.pipeline == 1) return {0};
  return smallest_schedule(parallel).stages_of(rank);
}

Sharding sharding_of(const Recipe& recipe, Group shard, Group replicate) {
  Sharding sharding;
  sharding.stage = static_cast<int>(recipe.parallel.zero_stage);
  sharding.shard = std::move(shard);
  sharding.replicate = std::move(replicate);
  sharding.microbatches_per_step = microbatches_per_step(recipe);
  sharding.splits_backward =
      recipe.parallel.pipeline > 1 && smallest_schedule(recipe.parallel).splits_backward();
  return sharding;
}

int most_microbatches(const Recipe& recipe, std::int64_t samples) {
  const std::int64_t most = even_split(samples, 0, recipe.parallel.data.value_or(1)).count;
  const std::int64_t size = recipe.train.micro_batch_size;
  return static_cast<int>((most + size - 1) / size);
}

int microbatches_per_step(const Recipe& recipe) {
  return most_microbatches(recipe, recipe.train.global_batch_size);
}

ModelPart::ModelPart(const Recipe& recipe, ModelPlacement placement) {
  Model model = build_model(recipe.model, static_cast<std::uint64_t>(recipe.seed),
                            {std::move(placement.tensor), recipe.parallel.activation_checkpoint,
                             has_embedding_group(recipe)});
  facts_ = model.facts;
  cut_ = cut_of(recipe.parallel, model.facts);
  parameters_ = parameters_of(model);

  std::vector<ParameterSpec> specs;
  int first_unit = 0;
  for (const int stage : stages_of(recipe.parallel, placement.pipeline_rank)) {
    const auto begin = model.units.begin() + cut_[static_cast<std::size_t>(stage)];
    const auto end = model.units.begin() + cut_[static_cast<std::size_t>(stage) + 1];
    std::vector<std::unique_ptr<Unit>> units(std::make_move_iterator(begin),
                                             std::make_move_iterator(end));
    const auto count = static_cast<int>(units.size());
    stages_.push_back(std::make_unique<UnitStage>(
        std::move(units), first_unit, recompute_of(recipe.parallel.activation_checkpoint)));
    first_unit += count;
    const auto more = stages_.back()->specs();
    specs.insert(specs.end(), more.begin(), more.end());
  }
  arena_ = std::make_unique<Arena>(specs, numeric_types(recipe.train.precision),
                                   std::move(placement.sharding));
  for (const auto& stage : stages_) stage->bind(*arena_);
}

std::vector<Stage*> ModelPart::stages() {
  std::vector<Stage*> stages;
  for (const auto& stage : stages_) stages.push_back(stage.get());
  return stages;
}

std::vector<std::string> ModelPart::parameter_names() const {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : parameters_) names.push_back(spec.name);
  return names;
}

}  // namespace troika
