#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/loss/expression.h>
#include <troika/models/row/network_result.h>
#include <troika/param/shape_text.h>

#include <algorithm>

namespace troika {
namespace {

std::vector<std::int64_t> batched(const ScriptTensor& tensor, std::int64_t samples) {
  std::vector<std::int64_t> shape = tensor.shape;
  shape.insert(shape.begin(), samples);
  return shape;
}

// What a loss of ours takes of the module.
ScriptTensor output_for(ScriptTensor target) {
  target.name = "outputs";
  if (target.classes > 0 && target.dtype == ScriptDtype::kInt64) {
    target.shape.push_back(target.classes);
  }
  target.dtype = ScriptDtype::kFloat32;
  target.classes = 0;
  return target;
}

// One output a sample may come without its dimension.
at::Tensor with_shape(const at::Tensor& output, const ScriptTensor& expected) {
  const bool is_short = output.dim() == 1 && expected.shape == std::vector<std::int64_t>{1};
  return is_short ? output.unsqueeze(1) : output;
}

// Where an output stands in [model.outputs]; their number where it does not.
std::size_t index_of(const NetworkFile& options, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::find(options.outputs, name, &ScriptTensor::name) -
                                  options.outputs.begin());
}

// Where a module's own loss and its weight stand; the number of outputs where samples are counted.
struct OwnLoss {
  explicit OwnLoss(const NetworkFile& options)
      : loss(options.loss_output == kFirstOutput ? 0 : index_of(options, options.loss_output)),
        weight(options.weight_output == kSampleCount ? options.outputs.size()
                                                     : index_of(options, options.weight_output)) {}

  [[nodiscard]] bool has(std::size_t index) const { return index == loss || index == weight; }

  std::size_t loss, weight;
};

void check_named(const NetworkFile& options, const std::string& key, const std::string& name,
                 const Origins& origins) {
  if (index_of(options, name) < options.outputs.size()) return;
  const std::vector<std::string> names = output_names(options);
  const auto near = nearest(name, names);
  origins.fail({"model." + key},
               key + ": [model.outputs] has no " + quote(name) +
                   (near ? "; did you mean " + quote(*near) + "?" : ""),
               "it has " + join(names, ", "));
}

void check_numbers(const NetworkFile& options, const OwnLoss& own, const Origins& origins) {
  for (const std::size_t index : {own.loss, own.weight}) {
    if (index == options.outputs.size() || options.outputs[index].shape.empty()) continue;
    origins.fail({"model.outputs"},
                 "outputs." + options.outputs[index].name + ".shape: " +
                     (index == own.loss ? "a loss" : "a weight") + " is a number, of shape []",
                 "each other output is [samples, ...]");
  }
}

void check_own_loss(const NetworkFile& options, const Origins& origins) {
  if (options.outputs.empty()) {
    origins.fail(
        {"model.loss"},
        "loss = \"none\": [model.outputs] has to say which tensor of forward() is the loss",
        "as in outputs = { loss = {} }");
  }
  if (!options.units.empty()) {
    origins.fail({"model.units"},
                 "units: a module that returns its own loss is one unit, as its loss takes targets",
                 "leave out units, or return what a loss of troika takes");
  }
  if (options.loss_output != kFirstOutput) {
    check_named(options, "loss_output", options.loss_output, origins);
  }
  if (options.weight_output != kSampleCount) {
    check_named(options, "weight_output", options.weight_output, origins);
  }
  const OwnLoss own(options);
  if (own.loss == own.weight) {
    origins.fail({"model.weight_output"},
                 "weight_output: " + quote(options.weight_output) + " is the loss itself",
                 "name both in [model.outputs]");
  }
  check_numbers(options, own, origins);
}

// What says something of a module's own loss, where there is none.
void refuse_keys_of_own_loss(const NetworkFile& options, const LossOptions& loss,
                             const Origins& origins) {
  const NetworkFile plain;
  const auto refuse = [&](const std::string& key, bool is_plain) {
    if (is_plain) return;
    origins.fail({"model." + key}, key + " is for loss = \"none\", not for loss = \"" +
                                       std::string(loss.name()) + "\"");
  };
  refuse("loss_output", options.loss_output == plain.loss_output);
  refuse("weight_output", options.weight_output == plain.weight_output);
  refuse("loss_reduction", options.loss_reduction == plain.loss_reduction);
}

// The loss takes the first output: logits of the classes of each target, or a number for each.
void check_first_output(const NetworkFile& options, const LossOptions& loss,
                        const Origins& origins) {
  if (options.outputs.empty()) return;
  const ScriptTensor &output = options.outputs.front(), &target = options.targets.front();
  const std::vector<std::int64_t> expected = output_for(target).shape;
  if (output.shape == expected) return;
  std::vector<std::int64_t> classes_first = expected;
  std::ranges::rotate(classes_first, classes_first.end() - (target.classes > 0 ? 1 : 0));
  if (output.shape == classes_first) return;
  origins.fail({"model.outputs"},
               "outputs." + output.name + ".shape: the loss takes " + shape_text(expected) +
                   " for the target " + quote(target.name) + ", not " + shape_text(output.shape),
               "loss = \"" + std::string(loss.name()) + "\" takes the first of [model.outputs]");
}

// A loss that the recipe writes names what the module returns.
void check_expression(const NetworkFile& options, const Origins& origins) {
  if (options.outputs.empty()) {
    origins.fail({"model.loss"},
                 "loss = \"expression\": [model.outputs] has to name what forward() returns",
                 "as in outputs = { energy = {} }");
  }
  if (options.units.empty()) return;
  origins.fail({"model.units"},
               "units: a module whose loss the recipe writes is one unit, as derivatives lead "
               "through all of it",
               "leave out units");
}

}  // namespace

void check_network_loss(const NetworkFile& options, const LossOptions& loss,
                        const Origins& origins) {
  if (loss.kind().is_of_model()) return check_own_loss(options, origins);
  refuse_keys_of_own_loss(options, loss, origins);
  if (expression_of(loss) != nullptr) return check_expression(options, origins);
  if (options.targets.size() != 1) {
    origins.fail(
        {"model.targets"},
        "targets: the loss takes one tensor, found " + std::to_string(options.targets.size()),
        "as in targets = { y = { classes = 10 } }; a module that returns its own loss has "
        "loss = \"none\"");
  }
  const ScriptTensor& target = options.targets.front();
  const std::string name = "targets." + target.name + ": ";
  const bool takes_classes = loss.kind().target_meaning() == TargetMeaning::kClass;
  const bool is_class = target.dtype == ScriptDtype::kInt64 && target.classes > 0;
  if (takes_classes != is_class) {
    const std::string takes = "loss = \"" + std::string(loss.name()) + "\" takes ";
    origins.fail({"model.targets"}, name + takes + (takes_classes ? "classes" : "numbers"),
                 "as in targets = { " + target.name +
                     (takes_classes ? " = { classes = 10 } }" : " = { shape = [1] } }"));
  }
  check_first_output(options, loss, origins);
}

std::vector<ScriptTensor> network_predictions(const NetworkFile& options, const LossKind& loss) {
  if (!loss.is_of_model()) {
    return options.outputs.empty() ? std::vector{output_for(options.targets.front())}
                                   : options.outputs;
  }
  std::vector<ScriptTensor> predictions;
  const OwnLoss own(options);
  for (std::size_t i = 0; i < options.outputs.size(); ++i) {
    if (!own.has(i)) predictions.push_back(options.outputs[i]);
  }
  return predictions;
}

NetworkResult::NetworkResult(const NetworkFile& options, const LossOptions& loss)
    : path_(shown_path(options.path)),
      target_(options.targets.front().name),
      recipe_loss_(loss),
      gives_(network_predictions(options, loss.kind())),
      is_own_(loss.kind().is_of_model()),
      is_mean_(options.loss_reduction == LossReduction::kMean),
      predictions_(gives_.size()),
      returned_(is_own_ ? options.outputs.size() : gives_.size()) {
  const OwnLoss own(options);
  for (std::size_t i = 0; i < returned_; ++i) {
    if (!is_own_ || !own.has(i)) indices_.push_back(i);
  }
  for (const std::size_t index : {own.loss, own.weight}) {
    if (!is_own_ || index >= options.outputs.size()) continue;
    indices_.push_back(index);
    gives_.push_back({options.outputs[index].name});
  }
}

at::Tensor NetworkResult::number(const at::Tensor& tensor, const ScriptTensor& output,
                                 std::int64_t samples) const {
  if (tensor.numel() != 1 || tensor.dim() > 1) {
    throw UsageError(
        path_ + " returns " + shape_text(tensor.sizes()) + " as " + quote(output.name) +
            ", which is no single number",
        "return the mean over the samples, or their sum with loss_reduction = \"sum\"");
  }
  if (tensor.is_complex()) {  // whose real part alone would be differentiated
    throw UsageError(path_ + " returns a complex number as " + quote(output.name),
                     "torch.real() or torch.abs() makes a real one");
  }
  const at::Tensor number = tensor.is_floating_point() ? tensor : tensor.to(at::kFloat);
  return number.reshape({1}).expand({samples});
}

Tensors NetworkResult::arrange(const Tensors& returned, std::int64_t samples) const {
  // Others than those of a loss of ours are of no use; whether one of them is the loss is.
  if (returned.size() < returned_ || (is_own_ && returned.size() > returned_)) {
    throw UsageError(path_ + " returns " + plural(std::ssize(returned), "tensor") + ", not " +
                         std::to_string(returned_),
                     "name what forward() returns in [model.outputs]");
  }
  Tensors arranged;
  for (std::size_t i = 0; i < gives_.size(); ++i) {
    const at::Tensor& tensor = returned[indices_[i]];
    // A number beside the loss, such as an accuracy, stands for each sample, too.
    const bool is_number = is_own_ && tensor.dim() == 0 && gives_[i].shape.empty();
    arranged.push_back(i < predictions_ && !is_number ? with_shape(tensor, gives_[i])
                                                      : number(tensor, gives_[i], samples));
  }
  return arranged;
}

void NetworkResult::check(const Tensors& arranged, std::int64_t samples) const {
  for (std::size_t i = 0; i < gives_.size(); ++i) {
    const at::Tensor& tensor = arranged[i];
    const std::vector<std::int64_t> expected = batched(gives_[i], samples);
    const std::string found = path_ + " returns " + shape_text(tensor.sizes());
    if (tensor.sizes() != at::IntArrayRef(expected)) {
      const bool keeps_samples = tensor.dim() > 0 && tensor.size(0) == samples;
      throw UsageError(
          found + " for " + plural(samples, "sample") + ", not " + shape_text(expected) + " as " +
              quote(gives_[i].name) + " is",
          keeps_samples ? "`classes` and `shape` of [model.targets] say what the loss takes, "
                          "and [model.outputs] what forward() returns"
                        : "the first dimension is that of the samples; a trace keeps that of its "
                          "example where forward() does not ask for x.size(0)");
    }
    const bool is_whole = gives_[i].dtype == ScriptDtype::kInt64;
    if (tensor.is_floating_point() == !is_whole && !tensor.is_complex()) continue;
    throw UsageError(path_ + " returns " + c10::toString(tensor.scalar_type()) + " as " +
                         quote(gives_[i].name) + ", which is " + (is_whole ? "int64" : "float32"),
                     "[model.outputs] says it: dtype = \"int64\" or \"float32\"");
  }
}

UnitLoss NetworkResult::loss() const {
  if (!is_own_) {
    return [loss = recipe_loss_.kind().make(recipe_loss_.options()), target = target_](
               const TensorMap& outputs, const Microbatch& microbatch) {
      return loss->of(outputs[0], LossTargets::of(microbatch, target));
    };
  }
  const bool has_weight = predictions_ + 1 < gives_.size();
  return [is_mean = is_mean_, has_weight, index = predictions_](const TensorMap& outputs,
                                                                const Microbatch& microbatch) {
    const at::Tensor loss = outputs[index].select(0, 0).to(at::kDouble);
    const at::Tensor weight =
        has_weight ? outputs[index + 1].select(0, 0).detach().to(at::kDouble)
                   : at::full({}, static_cast<double>(microbatch.samples()), loss.options());
    if (!is_mean) return LossTerms{loss, weight};
    // The mean of nothing is no number, and neither is its gradient.
    const bool is_empty = has_weight && weight.item<double>() == 0;
    return LossTerms{is_empty ? at::zeros_like(loss.detach()) : loss * weight, weight};
  };
}

}  // namespace troika
