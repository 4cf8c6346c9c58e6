// Derivatives of a model's outputs with respect to its inputs, by autograd over the units' own
// differentiable form.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/capi/array_model.h>
#include <troika/device/device.h>

#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Returns one value of each sample's, or the sum of all, summed over the samples.
at::Tensor number_of(const at::Tensor& output, const TensorSpec& spec,
                     std::optional<std::int64_t> component) {
  if (!component) return output.sum();
  const std::int64_t values = values_of(spec);
  if (*component < 0 || *component >= values) {
    throw UsageError("component " + std::to_string(*component) + " is none of output " +
                         quote(spec.name, 200) + ", which has " + plural(values, "value"),
                     "components are counted from 0, row by row");
  }
  return output.reshape({output.size(0), values}).select(1, *component).sum();
}

const TensorSpec& differentiable_input(std::span<const TensorSpec> inputs,
                                       const std::string& name) {
  const TensorSpec& spec = spec_named(inputs, name, "input");
  if (at::isFloatingType(spec.dtype) && spec.range == 0) return spec;
  throw UsageError("input " + quote(name, 200) + " is of whole numbers: there is no derivative");
}

}  // namespace

TensorMap ArrayModel::input_gradients(std::int64_t samples, const NamedArrays& inputs,
                                      const Differentiated& of,
                                      const std::vector<std::string>& with_respect_to) const {
  const c10::NoGradGuard no_autograd;
  Microbatch microbatch = samples_to_predict(samples, inputs);
  const TensorSpec& output =
      of.output.empty() ? outputs().front() : spec_named(outputs(), of.output, "output");
  const auto index = static_cast<std::size_t>(&output - outputs().data());
  for (const std::string& name : with_respect_to) (void)differentiable_input(inputs_, name);
  Tensors found;
  on_device([&] {
    microbatch = to_device(std::move(microbatch), device_);
    Tensors variables;
    for (const std::string& name : with_respect_to) {
      variables.push_back(microbatch.tensors.at(name).requires_grad_(true));
    }
    const c10::AutoGradMode with_autograd(true);
    const std::optional<Tensors> outputs = stage_->differentiable(microbatch);
    if (!outputs) {
      throw UsageError("kind = \"" + std::string(recipe_.model.name()) +
                           "\" has no derivatives with respect to its inputs",
                       "mlp, resnet, torchscript and models of plug-ins have them");
    }
    const at::Tensor number = number_of(outputs->at(index), output, of.component);
    if (number.requires_grad() && !variables.empty()) {
      found = torch::autograd::grad({number}, variables, {}, std::nullopt, false, true);
    }
    found.resize(variables.size());
  });
  TensorMap gradients;
  for (std::size_t i = 0; i < with_respect_to.size(); ++i) {
    const at::Tensor& input = microbatch.tensors.at(with_respect_to[i]);
    // An output that does not depend on an input has no gradient there.
    gradients.add(with_respect_to[i],
                  to_host(found[i].defined() ? found[i] : at::zeros_like(input)).detach());
  }
  return gradients;
}

}  // namespace troika
