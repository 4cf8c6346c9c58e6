#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/device/choose.h>
#include <troika/device/device.h>
#include <troika/inference/trained_model.h>
#include <troika/models/kind.h>
#include <troika/param/shape_text.h>
#include <troika/train/adapted_model.h>
#include <troika/train/model_part.h>
#include <troika/train/precision.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tokenizer.h>
#include <troika/train/saved_model.h>

#include <algorithm>

namespace troika {
namespace {

// One process holds all of it.
Recipe on_one_rank(Recipe recipe) {
  recipe.parallel = ParallelOptions();
  recipe.parallel.data = 1;
  return recipe;
}

// Throws UsageError naming a tensor that is none of the inputs.
void check_names(const SampleSpec& sample, const TensorMap& inputs) {
  std::vector<std::string> known;
  for (const TensorSpec& each : sample.tensors) {
    if (each.role == TensorRole::kInput) known.push_back(each.name);
  }
  for (const NamedTensor& each : inputs) {
    if (std::ranges::count(known, each.name) > 0) continue;
    const auto near = nearest(each.name, known);
    throw UsageError("the model takes no input " + quote(each.name, 200) +
                         (near ? "; did you mean " + quote(*near) + "?" : ""),
                     "it takes " + join(known, ", "));
  }
}

}  // namespace

struct TrainedModel::Impl {
  Impl(const std::filesystem::path& run, const std::string& device, SavedModel which,
       std::optional<Precision> precision, std::span<const std::string> overrides)
      : chosen(choose_device(device, {}, "device")),
        recipe(on_one_rank(recipe_of_trained(run, overrides))) {
    const auto path = which == SavedModel::kBest ? best_model_path(run) : model_path(run);
    if (!std::filesystem::exists(path)) {
      throw DataError("the run in " + shown_path(run) + " has no such model: " + shown_path(path) +
                          " is missing",
                      which == SavedModel::kBest
                          ? "train.best_metric has a run keep the best one"
                          : "a run saves its model when it ends; train it to the end");
    }
    if (which != SavedModel::kBest && std::filesystem::exists(run / "checkpoints")) {
      warn_of_older_model(run);
    }
    warn_of_doubt(path);
    const Recipe trained = recipe;
    recipe = merged_recipe(std::move(recipe));
    // A run with adapters has no program of its own: it keeps to that of its base.
    if (trained == recipe) recipe.model.kind().adapt_to_run(recipe.model.options(), path);
    recipe.train.precision = resolve_precision(precision.value_or(recipe.train.precision), chosen);
    ModelPlacement placement;
    placement.device = chosen;
    part.emplace(recipe, std::move(placement));
    std::vector<NamedTensor> buffers;
    for (const ModelPart::Buffer& each : part->buffers()) {
      buffers.push_back({each.name, each.tensor});
    }
    load_trained(trained, path, part->arena(), buffers);
  }

  // Returns the type of inputs and outputs, that of the masters.
  [[nodiscard]] at::ScalarType held() const {
    return recipe.train.precision == Precision::kFloat64 ? at::kDouble : at::kFloat;
  }

  [[nodiscard]] Activation run(Microbatch samples) {
    const at::NoGradGuard no_autograd;
    Saved saved;
    saved.mode = Mode::kEvaluate;
    saved.wants_predictions = true;
    saved.microbatch = to_device(std::move(samples), chosen);
    UnitHooks hooks;
    return part->stages().front()->forward({}, saved, hooks);
  }

  at::Device chosen;
  Recipe recipe;
  std::optional<ModelPart> part;
};

TrainedModel::TrainedModel(const std::filesystem::path& run, const std::string& device,
                           SavedModel which, std::optional<Precision> precision,
                           std::span<const std::string> overrides)
    : impl_(std::make_unique<Impl>(run, device, which, precision, overrides)) {}

TrainedModel::~TrainedModel() = default;
TrainedModel::TrainedModel(TrainedModel&&) noexcept = default;
TrainedModel& TrainedModel::operator=(TrainedModel&&) noexcept = default;

const Recipe& TrainedModel::recipe() const {
  return impl_->recipe;
}

void TrainedModel::check_gives_outputs() const {
  const ModelOptions& model = impl_->recipe.model;
  const ModelTraits traits = traits_of(model);
  if (!traits.has_own_loss && !traits.output_tensors.empty()) return;
  const std::string kind = "a model of kind = \"" + std::string(model.name()) + "\"";
  if (traits.sample.is_language()) {
    throw UsageError(kind +
                         " writes text, token by token, and keeps no outputs of a sample: there "
                         "is nothing to predict",
                     "`troika generate` samples text, and `troika evaluate` says its loss");
  }
  throw UsageError(kind + " with a loss of its own gives no outputs: there is nothing to predict",
                   "`troika evaluate` says its loss; [model.outputs] names what else it returns");
}

Microbatch TrainedModel::samples_of(const TensorMap& inputs) const {
  const SampleSpec sample = traits_of(impl_->recipe.model).sample;
  check_names(sample, inputs);
  Microbatch samples;
  for (const TensorSpec& spec : sample.tensors) {
    if (spec.optional) continue;
    const std::int64_t count = samples.samples();
    std::vector<std::int64_t> shape = spec.shape;
    if (spec.role == TensorRole::kTarget) {  // the last unit computes a loss, which is not used
      shape.insert(shape.begin(), count);
      samples.tensors.add(spec.name, at::zeros(shape, spec.dtype));
      continue;
    }
    const at::Tensor& given = inputs.at(spec.name);
    shape.insert(shape.begin(), samples.tensors.empty() && given.dim() > 0 ? given.size(0) : count);
    if (given.sizes() != at::IntArrayRef(shape)) {
      throw UsageError("input " + quote(spec.name) + " is " + shape_text(given.sizes()) +
                       ", and the model takes " + shape_text(shape));
    }
    const bool is_floating = at::isFloatingType(spec.dtype);
    samples.tensors.add(spec.name, given.to(is_floating ? impl_->held() : spec.dtype));
  }
  samples.valid = samples.samples();
  samples.sample_ids = at::arange(samples.samples(), at::kLong);
  return samples;
}

TensorMap TrainedModel::outputs(const TensorMap& inputs) const {
  check_gives_outputs();
  const std::vector<TensorSpec> specs = traits_of(impl_->recipe.model).output_tensors;
  const Microbatch samples = samples_of(inputs);
  TensorMap outputs;
  if (samples.samples() == 0) {
    for (const TensorSpec& each : specs) {
      std::vector<std::int64_t> shape = each.shape;
      shape.insert(shape.begin(), 0);
      const bool is_floating = at::isFloatingType(each.dtype);
      outputs.add(each.name, at::empty(shape, is_floating ? impl_->held() : each.dtype));
    }
    return outputs;
  }
  const std::vector<at::Tensor> given = judge(samples).outputs;
  for (std::size_t i = 0; i < given.size(); ++i) outputs.add(specs[i].name, to_host(given[i]));
  return outputs;
}

at::Tensor TrainedModel::operator()(const TensorMap& inputs) const {
  return outputs(inputs)[0];
}

TrainedModel::Judged TrainedModel::judge(const Microbatch& samples) const {
  Activation result = impl_->run(samples);
  // A loss of the model's own, and what it weighs, are behind its outputs.
  const std::size_t given = traits_of(impl_->recipe.model).output_tensors.size();
  result.tensors.resize(std::min(result.tensors.size(), given));
  return {std::move(result.tensors), std::move(result.loss)};
}

TrainedModel load_model(const std::filesystem::path& run, const std::string& device,
                        SavedModel which, std::optional<Precision> precision,
                        std::span<const std::string> overrides) {
  return {run, device, which, precision, overrides};
}

}  // namespace troika
