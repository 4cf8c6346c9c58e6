#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/text.h>
#include <troika/capi/array_model.h>
#include <troika/models/model.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/schedule.h>
#include <troika/recipe/recipe_file.h>
#include <troika/session/consensus.h>
#include <troika/train/precision.h>
#include <troika/train/saved_model.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Collective.
Recipe agreed(const Session& session, const ArrayModel::ReadRecipe& read) {
  constexpr std::string_view kLabel = "recipe of a model";
  Recipe recipe;
  run_on_all_ranks(
      session, [&] { recipe = read(); }, kLabel, NameRanks::kUnlessAll);
  if (const auto difference = find_difference(session, to_toml(recipe), kLabel)) {
    throw UsageError("the recipe of the model differs between rank 0 and rank " +
                         std::to_string(difference->theirs.ranks.front()),
                     "create it from the same recipe on all ranks");
  }
  return recipe;
}

// Whole numbers from 0 to below `classes`, which a floating-point array may hold.
at::Tensor class_numbers(const at::Tensor& targets, std::int64_t classes) {
  const at::Tensor numbers = targets.to(at::kLong);
  if (targets.numel() > 0 &&
      !at::logical_and(numbers == targets, at::logical_and(numbers >= 0, numbers < classes))
           .all()
           .item<bool>()) {
    throw UsageError(
        "a target is no class: targets are whole numbers from 0 to " + std::to_string(classes - 1),
        "or set loss = \"mean_square\" in [model], if they are values");
  }
  return numbers;
}

[[noreturn]] void refuse_without_targets(const std::string& what, const StepSums& sums) {
  if (sums.valid == 0) {
    throw UsageError(what + " of no samples at all", "one rank at least has to have some");
  }
  throw UsageError(what + " of samples whose targets are all missing",
                   "a target that is NaN does not count; one at least has to be a number");
}

// Not from files, and under no name: the caller has both.
std::vector<std::string> fixed_keys() {
  return {"name=array", "data.kind=random"};
}

Recipe for_arrays(Recipe recipe, std::string_view source) {
  if (!recipe.model.holds<MlpOptions>()) {
    throw UsageError(std::string(source) + ": model.kind \"" + std::string(recipe.model.name()) +
                         "\" cannot be trained on arrays of one's own",
                     "write kind = \"mlp\"");
  }
  if (recipe.train.precision == Precision::kFloat16) {
    throw UsageError(
        std::string(source) + ": train.precision \"fp16\" cannot be trained on arrays of one's own",
        "write precision = \"bf16\", \"fp32\" or \"fp64\"");
  }
  if (recipe.train.precision == Precision::kAuto) recipe.train.precision = Precision::kFloat32;
  return recipe;
}

std::vector<ParameterSpec> specs_of(const Stage& stage, const OptimizerOptions& optimizer) {
  const auto declared = stage.specs();
  std::vector<ParameterSpec> specs(declared.begin(), declared.end());
  std::vector<std::string> names;
  for (const ParameterSpec& spec : specs) names.push_back(spec.name);
  apply_groups(optimizer.groups, names, specs);
  return specs;
}

}  // namespace

Recipe parse_array_recipe(std::string_view text, std::string_view source) {
  return for_arrays(parse_recipe(text, source, fixed_keys()).recipe, source);
}

Recipe load_array_recipe(const std::filesystem::path& file) {
  return for_arrays(load_recipe(file, fixed_keys()).recipe, file.string());
}

ArrayModel::ArrayModel(Session session, const Recipe& recipe)
    : ArrayModel(std::move(session), [&] { return recipe; }) {}

ArrayModel::ArrayModel(Session session, const ReadRecipe& read)
    : session_(std::move(session)),
      recipe_(agreed(session_, read)),
      stage_(build_model(recipe_.model, static_cast<std::uint64_t>(recipe_.seed)).units, 0) {
  const at::NoGradGuard no_autograd;
  arena_ = std::make_unique<Arena>(specs_of(stage_, recipe_.optimizer),
                                   numeric_types(recipe_.train.precision), session_.world());
  stage_.bind(*arena_);
  arena_->initialize(static_cast<std::uint64_t>(recipe_.seed));
  optimizer_ = make_optimizer(recipe_.optimizer, *arena_);
  executor_ = std::make_unique<PipelineExecutor>(std::vector<Stage*>{&stage_}, Group(),
                                                 PipelineOptions(), nullptr);
  norm_sums_ = std::make_unique<ParameterSums>(*arena_, SumGroups());
  AllReduceOptions options;
  options.all = {session_.world()};
  options.timeout = session_.timeout();
  sync_ = std::make_unique<AllReduceSync>(*arena_, std::move(options));
  engine_.emplace(StepEngine::Parts{*executor_, *sync_, *arena_, *norm_sums_});
  outputs_.emplace(shape(), *arena_);
}

ArrayModel::LocalBatch ArrayModel::local_batch(const MakeBatch& make) const {
  LocalBatch local;
  local.refusal = failure_in([&] {
    const ArrayBatch batch = make();
    if (batch.inputs.size(0) > 0) local.microbatches.push_back(microbatch_of(batch));
  });
  return local;
}

Microbatch ArrayModel::microbatch_of(const ArrayBatch& batch) const {
  Microbatch microbatch;
  microbatch.tensors = {
      {"features", batch.inputs},
      {"targets", predicts_classes() ? class_numbers(batch.targets, shape().output_dim)
                                     : batch.targets.to(arena_->types().master)}};
  microbatch.valid = batch.inputs.size(0);
  microbatch.step = steps_ + 1;
  return microbatch;
}

bool ArrayModel::predicts_classes() const {
  return traits_of(recipe_.model).sample.target().dtype == at::kLong;
}

StepPart ArrayModel::part_of(const LocalBatch& local) {
  StepPart part;
  for (const Microbatch& microbatch : local.microbatches) part.valid += microbatch.valid;
  part.refused = local.refusal.has_value();
  return part;
}

double ArrayModel::step(const at::Tensor& inputs, const at::Tensor& targets) {
  return step([&] { return ArrayBatch{inputs, targets}; });
}

double ArrayModel::step(const MakeBatch& make) {
  const at::NoGradGuard no_autograd;
  const LocalBatch local = local_batch(make);
  const TrainOptions& train = recipe_.train;
  const double loss_scale =
      loss_scale_for(train.precision, static_cast<double>(train.global_batch_size), 1);
  const StepSums sums =
      engine_->differentiate({local.microbatches, loss_scale, part_of(local), session_.timeout()})
          .sums;
  if (sums.refused || sums.weight == 0) engine_->skip();
  if (sums.refused) {
    throw_on_all_ranks(session_, local.refusal, "refused arrays", NameRanks::kUnlessAll);
  }
  if (sums.weight == 0) refuse_without_targets("a step", sums);
  ++steps_;
  const double scale = 1 / (loss_scale * sums.weight);
  const double norm = engine_->gradient_norm() * scale;
  if (!sums.nonfinite_ranks.empty() || !std::isfinite(norm)) {
    engine_->skip();
    refuse_nonfinite(sums, norm);
  } else {
    engine_->update(*optimizer_,
                    {learning_rate(recipe_.optimizer, train.steps, train.global_batch_size, steps_),
                     scale * clip_factor(norm, train.grad_clip), ++updates_});
  }
  return sums.loss / sums.weight;
}

void ArrayModel::refuse_nonfinite(const StepSums& sums, double norm) const {
  if (recipe_.train.on_nonfinite == OnNonFinite::kSkip) return;
  std::string what = "the gradient norm is " + std::to_string(norm);
  if (!sums.nonfinite_ranks.empty()) {
    std::vector<std::string> ranks;
    for (const int rank : sums.nonfinite_ranks) ranks.push_back(std::to_string(rank));
    what = "the loss is not finite on rank " + join(ranks, ", ");
  }
  throw NonFiniteError(what + " at step " + std::to_string(steps_),
                       "look for a NaN in the arrays, lower optimizer.lr, or set "
                       "train.on_nonfinite = \"skip\"");
}

double ArrayModel::loss(const MakeBatch& make) {
  const at::NoGradGuard no_autograd;
  const LocalBatch local = local_batch(make);
  StepPart own = part_of(local);
  own.loss = executor_->evaluate(local.microbatches, *sync_, session_.timeout()).loss;
  const StepSums sums = engine_->sum(own, "loss");
  if (sums.refused) {
    throw_on_all_ranks(session_, local.refusal, "refused arrays", NameRanks::kUnlessAll);
  }
  if (sums.weight == 0) refuse_without_targets("a loss", sums);
  return sums.loss / sums.weight;
}

at::Tensor ArrayModel::predict(const at::Tensor& inputs) const {
  const at::NoGradGuard no_autograd;
  return outputs_->of(inputs).to(inputs.scalar_type());
}

void ArrayModel::on_rank_0(std::string_view label, const std::function<void()>& work) const {
  throw_on_all_ranks(session_, session_.rank() == 0 ? failure_in(work) : std::nullopt, label,
                     NameRanks::kUnlessAll);
}

void ArrayModel::save(const std::filesystem::path& path) const {
  const at::NoGradGuard no_autograd;
  on_rank_0("save", [&] { save_parameters(path, *arena_); });
}

void ArrayModel::load(const std::filesystem::path& path) {
  const at::NoGradGuard no_autograd;
  on_rank_0("load", [&] { load_parameters(path, *arena_); });
  session_.world()
      .broadcast(arena_->masters(0, arena_->units()), 0, session_.call("loaded parameters"))
      .wait();
  arena_->publish();
}

}  // namespace troika
