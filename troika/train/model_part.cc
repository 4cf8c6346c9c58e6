#include <troika/base/index_range.h>
#include <troika/parallel/pipeline/cut.h>
#include <troika/recipe/resolve.h>
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
Schedule smallest_schedule(const ParallelOptions& parallel) {
  return make_schedule(parallel.pipeline_schedule,
                       {static_cast<int>(parallel.pipeline),
                        static_cast<int>(virtual_stages_per_rank(parallel)), 1});
}

// All names by which patterns know parameters, sorted: those of tied weights, too, on any layout.
std::vector<std::string> names_of(const Model& model) {
  std::vector<std::string> names;
  for (const auto& unit : model.units) {
    for (const ParameterSpec& spec : unit->specs()) {
      names.push_back(spec.name);
      if (!spec.replica_name.empty()) names.push_back(spec.replica_name);
    }
  }
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  return names;
}

// The number of units where no parameter is trained.
int first_trained_unit(const std::vector<std::vector<ParameterSpec>>& specs_of_units) {
  const auto first = std::ranges::find_if(specs_of_units, [](const auto& specs) {
    return !std::ranges::all_of(specs, &ParameterSpec::frozen);
  });
  return static_cast<int>(first - specs_of_units.begin());
}

[[noreturn]] void refuse_frozen() {
  throw UsageError(
      "[optimizer] groups: all parameters of the model are frozen, and nothing would "
      "be trained",
      "the first group that fits a name counts: put those to be trained before "
      "{ match = \"*\", frozen = true }");
}

}  // namespace

std::vector<StateSpec> ModelPart::specs() const {
  std::vector<StateSpec> specs;
  for (const ParameterSpec& spec : parameters_) {
    specs.push_back({spec.name, spec.shape, arena_->types().lasting(spec)});
  }
  for (const Buffer& buffer : buffers_) {
    specs.push_back({buffer.name, buffer.tensor.sizes().vec(), buffer.tensor.scalar_type()});
  }
  std::ranges::sort(specs, {}, &StateSpec::name);
  return specs;
}

StateDict ModelPart::places() const {
  StateDict places;
  for (const LocalShard& shard : arena_->local_shards()) {
    places.add(arena_->parameters()[shard.parameter]->spec().name,
               ShardDescriptor::of(*arena_, shard), shard.master.view({-1}));
  }
  for (const Buffer& buffer : buffers_) {
    if (!buffer.is_here) continue;
    places.add(buffer.name, ShardDescriptor::whole(buffer.tensor.sizes(), false),
               buffer.tensor.view({-1}));
  }
  return places;
}

std::vector<int> cut_of(const ParallelOptions& parallel, const ModelFacts& facts) {
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

std::vector<int> stages_of(const ParallelOptions& parallel, int rank) {
  if (parallel.pipeline == 1) return {0};
  return smallest_schedule(parallel).stages_of(rank);
}

Sharding sharding_of(const Recipe& recipe, Group shard, Group replicate) {
  Sharding sharding;
  sharding.stage = static_cast<int>(recipe.parallel.zero_stage);
  sharding.shard = std::move(shard);
  sharding.replicate = std::move(replicate);
  sharding.microbatches_per_step = microbatches_per_step(recipe);
  sharding.cut_gradients = recipe.parallel.cut_gradients;
  sharding.splits_backward =
      recipe.parallel.pipeline > 1 && smallest_schedule(recipe.parallel).splits_backward();
  return sharding;
}

int most_microbatches(const Recipe& recipe, std::int64_t samples) {
  const std::int64_t most = even_split(samples, 0, replicas_of(recipe)).count;
  const std::int64_t size = recipe.train.micro_batch_size;
  return static_cast<int>((most + size - 1) / size);
}

std::int64_t replicas_of(const Recipe& recipe) {
  return recipe.parallel.islands * recipe.parallel.data.value_or(1);
}

int microbatches_per_step(const Recipe& recipe) {
  return most_microbatches(recipe, recipe.train.global_batch_size);
}

ModelPart::ModelPart(const Recipe& recipe, ModelPlacement placement) {
  ModelLayout layout{.tensor = std::move(placement.tensor),
                     .checkpoint = recipe.parallel.activation_checkpoint,
                     .tied_across_stages = has_embedding_group(recipe),
                     .type = numeric_types(recipe.train.precision).compute,
                     .recompute = recompute_of(recipe.parallel.activation_checkpoint),
                     .data = std::move(placement.data),
                     .timeout = placement.timeout,
                     .on_device = placement.dry_run_of_device || !placement.device.is_cpu()};
  // Autograd keeps working weights, which ZeRO 3 takes away between the passes.
  if (recipe.parallel.zero_stage == 3) layout.recompute = Recompute::kUnits;
  Model model = build_model(recipe.model, static_cast<std::uint64_t>(recipe.seed), layout);
  facts_ = model.facts;
  cut_ = cut_of(recipe.parallel, model.facts);
  parameters_ = parameters_of(model);
  for (const std::string& layer : model.adapted_layers) {
    for (const std::string_view end : {kLoraA, kLoraB}) adapters_.insert(layer + std::string(end));
  }
  const std::vector<std::string> names = names_of(model);
  const auto treat = [&](std::span<ParameterSpec> specs) {
    apply_groups(recipe.optimizer.groups, names, specs);
    for (ParameterSpec& spec : specs) {
      if (has_adapters() && !is_adapter(spec.name)) spec.frozen = true;
    }
  };
  treat(parameters_);
  for (const ParameterSpec& spec : parameters_) {
    if (has_adapters() && !is_adapter(spec.name)) base_.insert(spec.name);
  }
  std::vector<std::vector<ParameterSpec>> specs_of_units;
  for (const auto& unit : model.units) treat(specs_of_units.emplace_back(unit->specs()));
  const int first_trained = first_trained_unit(specs_of_units);
  if (first_trained == std::ssize(specs_of_units)) refuse_frozen();
  first_trained_stage_ = static_cast<int>(
      std::ranges::upper_bound(cut_.begin() + 1, cut_.end(), first_trained) - cut_.begin() - 1);

  const std::vector<int> own_stages = stages_of(recipe.parallel, placement.pipeline_rank);
  for (int stage = 0; stage + 1 < std::ssize(cut_); ++stage) {
    const bool is_here = std::ranges::count(own_stages, stage) > 0;
    for (int unit = cut_[static_cast<std::size_t>(stage)];
         unit < cut_[static_cast<std::size_t>(stage) + 1]; ++unit) {
      model.units[static_cast<std::size_t>(unit)]->for_each_buffer(
          [&](const std::string& name, const at::Tensor& tensor) {
            buffers_.push_back({name, stage, tensor, is_here});
          });
    }
  }
  std::vector<ParameterSpec> specs;
  int first_unit = 0;
  for (const int stage : own_stages) {
    const auto begin = model.units.begin() + cut_[static_cast<std::size_t>(stage)];
    const auto end = model.units.begin() + cut_[static_cast<std::size_t>(stage) + 1];
    std::vector<std::unique_ptr<Unit>> units(std::make_move_iterator(begin),
                                             std::make_move_iterator(end));
    const auto count = static_cast<int>(units.size());
    const bool autograd =
        std::ranges::any_of(units, [](const auto& unit) { return unit->uses_autograd(); });
    const Recompute recompute =
        autograd ? layout.recompute : recompute_of(recipe.parallel.activation_checkpoint);
    stages_.push_back(
        std::make_unique<UnitStage>(std::move(units), first_unit, recompute,
                                    first_trained - cut_[static_cast<std::size_t>(stage)]));
    first_unit += count;
    const auto more = stages_.back()->specs();
    specs.insert(specs.end(), more.begin(), more.end());
  }
  treat(specs);
  arena_ = std::make_unique<Arena>(specs, numeric_types(recipe.train.precision),
                                   std::move(placement.sharding), placement.device);
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
