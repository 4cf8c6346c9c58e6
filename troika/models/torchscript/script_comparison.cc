#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/models/torchscript/script_comparison.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/random_draws.h>

#include <cmath>

namespace troika {
namespace {

constexpr std::uint64_t kComparedDraws = 1;
// Of the largest output. The operators are the same, and so most often are the bits.
constexpr double kAllowedDifference = 1e-5;

// Puts back, at its end, the values that tensors had at first.
class EarlierValues {
 public:
  explicit EarlierValues(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const at::Tensor& each : tensors_) values_.push_back(each.detach().clone());
  }
  ~EarlierValues() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].copy_(values_[i]);
  }
  EarlierValues(const EarlierValues&) = delete;
  EarlierValues& operator=(const EarlierValues&) = delete;

 private:
  std::vector<at::Tensor> tensors_, values_;
};

std::vector<at::Tensor> all_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : detail::parameters_of(module)) tensors.push_back(each.tensor);
  for (const NamedTensor& each : detail::buffers_of(module)) tensors.push_back(each.tensor);
  return tensors;
}

// Adds noise that keeps activations in the range that they have.
void shift_parameters(const torch::nn::Module& module) {
  for (const NamedTensor& each : detail::parameters_of(module)) {
    const at::Tensor& tensor = each.tensor;
    if (!tensor.is_floating_point() || tensor.numel() == 0) continue;
    const double inputs =
        tensor.dim() > 1 ? static_cast<double>(tensor.numel()) / static_cast<double>(tensor.size(0))
                         : 25;
    tensor.add_(at::randn_like(tensor), 0.5 / std::sqrt(inputs));
  }
}

bool are_alike(const at::Tensor& found, const at::Tensor& expected) {
  if (expected.numel() == 0) return true;
  const at::Tensor finite = at::nan_to_num(expected.to(at::kDouble), 0.0, 0.0, 0.0);
  const double bound = kAllowedDifference * finite.abs().max().item<double>();
  return at::allclose(found.to(at::kDouble), expected.to(at::kDouble), 0, bound,
                      /*equal_nan=*/true);
}

Tensors forward_of(ScriptModule& whole, const Tensors& inputs, Mode mode) {
  const EarlierValues restored(all_of(whole));
  detail::seed_generators(at::kCPU, kComparedDraws);
  whole.train(mode == Mode::kTrain);
  return whole.forward(inputs);
}

Tensors row_of(std::span<const ScriptUnit> units, const ScriptModule& whole, const Tensors& inputs,
               Mode mode) {
  const EarlierValues restored(all_of(whole));
  detail::seed_generators(at::kCPU, kComparedDraws);
  return run_units(units, inputs, mode).back();
}

}  // namespace

void check_units(const Script& script, std::span<const ScriptUnit> units,
                 const std::vector<std::string>& outputs, const Tensors& inputs) {
  if (units.size() == 1 && units.front().prefix.empty()) return;
  const at::NoGradGuard no_grad;
  ScriptModule whole(script, outputs);
  const EarlierValues restored(all_of(whole));
  shift_parameters(whole);
  const std::string hint =
      "between the units forward() may only flatten; what else it computes goes into a child";
  for (const Mode mode : {Mode::kEvaluate, Mode::kTrain}) {
    const Tensors found = row_of(units, whole, inputs, mode);
    const Tensors expected = forward_of(whole, inputs, mode);
    if (found.size() != expected.size() || shapes_of(found) != shapes_of(expected)) {
      throw UsageError("the last unit, " + quote(units.back().name, 200) + ", gives " +
                           shapes_of(found) + ", and forward() of " + shown_path(script.path) +
                           " gives " + shapes_of(expected),
                       hint);
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (are_alike(found[i], expected[i])) continue;
      throw UsageError("the units of " + shown_path(script.path) +
                           ", one after the other, give other numbers than its forward()" +
                           (mode == Mode::kTrain ? " in training" : ""),
                       mode == Mode::kTrain
                           ? "between the units forward() may only flatten; dropout there goes "
                             "into a child, as nn.Dropout"
                           : hint);
    }
  }
}

}  // namespace troika
