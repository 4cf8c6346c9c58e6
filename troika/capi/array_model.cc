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
  arena_ = std::make_unique<Arena>(stage_.specs(), numeric_types(recipe_.train.precision),
                                   session_.world());
  stage_.bind(*arena_);
  arena_->initialize(static_cast<std::uint64_t>(recipe_.seed));
  optimizer_ = make_optimizer(recipe_.optimizer, *arena_);
  data_axis_ = std::make_unique<DataAxis>(*arena_);
  outputs_.emplace(shape(), *arena_);
}

ArrayModel::LocalBatch ArrayModel::local_batch(const MakeBatch& make, Mode mode) const {
  LocalBatch local;
  local.refusal = failure_in([&] {
    const ArrayBatch batch = make();
    local.saved = saved_for(batch, mode);
    local.samples = batch.inputs.size(0);
  });
  return local;
}

Saved ArrayModel::saved_for(const ArrayBatch& batch, Mode mode) const {
  Saved saved;
  saved.mode = mode;
  saved.microbatch.inputs = batch.inputs;
  saved.microbatch.targets = shape().loss == Loss::kCrossEntropy
                                 ? class_numbers(batch.targets, shape().output_dim)
                                 : batch.targets.to(arena_->types().master);
  saved.microbatch.valid = batch.inputs.size(0);
  saved.microbatch.step = steps_ + 1;
  saved.loss_scale = loss_scale_for(recipe_.train.precision,
                                    static_cast<double>(recipe_.train.global_batch_size), 1);
  return saved;
}

LossSum ArrayModel::sum_over_ranks(double loss, const LocalBatch& local) const {
  const std::int64_t valid = local.refusal ? LossSum::kRefused : local.samples;
  return {session_.world(), loss, valid, session_.call("loss")};
}

double ArrayModel::step(const at::Tensor& inputs, const at::Tensor& targets) {
  return step([&] { return ArrayBatch{inputs, targets}; });
}

double ArrayModel::step(const MakeBatch& make) {
  const at::NoGradGuard no_autograd;
  LocalBatch local = local_batch(make, Mode::kTrain);
  const bool has_samples = local.samples > 0;
  const double loss_scale = local.saved.loss_scale;
  data_axis_->begin_step(has_samples ? 1 : 0, session_.timeout());
  const double own = has_samples ? stage_.forward({}, local.saved, *data_axis_).loss_sum : 0;
  const LossSum loss = sum_over_ranks(own, local);
  if (has_samples) stage_.backward(local.saved, {}, *data_axis_);
  data_axis_->finish();
  const LossSum::Result sums = loss.wait();
  if (sums.refused)
    throw_on_all_ranks(session_, local.refusal, "refused arrays", NameRanks::kUnlessAll);
  if (sums.valid == 0) {
    throw UsageError("a step on no samples at all", "one rank at least has to have some");
  }
  ++steps_;
  const double scale = 1 / (loss_scale * static_cast<double>(sums.valid));
  const double norm = global_norm(*arena_) * scale;
  if (!sums.nonfinite_ranks.empty() || !std::isfinite(norm)) {
    refuse_nonfinite(sums, norm);
  } else {
    const TrainOptions& train = recipe_.train;
    optimizer_->step(
        {learning_rate(recipe_.optimizer, train.steps, train.global_batch_size, steps_),
         scale * clip_factor(norm, train.grad_clip), ++updates_});
  }
  return sums.loss / static_cast<double>(sums.valid);
}

void ArrayModel::refuse_nonfinite(const LossSum::Result& sums, double norm) const {
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
  LocalBatch local = local_batch(make, Mode::kEvaluate);
  UnitHooks hooks;
  const double own = local.samples > 0 ? stage_.forward({}, local.saved, hooks).loss_sum : 0;
  const LossSum::Result sums = sum_over_ranks(own, local).wait();
  if (sums.refused)
    throw_on_all_ranks(session_, local.refusal, "refused arrays", NameRanks::kUnlessAll);
  if (sums.valid == 0) {
    throw UsageError("a loss of no samples at all", "one rank at least has to have some");
  }
  return sums.loss / static_cast<double>(sums.valid);
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
