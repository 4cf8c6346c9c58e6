#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/models/row/expression_row.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

bool is_target(const TensorSpec& spec) {
  return spec.role == TensorRole::kTarget && spec.name != kSampleWeights;
}

std::vector<std::string> target_names(const SampleSpec& sample, const ExpressionOptions& options) {
  std::vector<std::string> names;
  for (const ExpressionTarget& each : options.targets) names.push_back(each.name);
  if (!names.empty()) return names;
  for (const TensorSpec& each : sample.tensors) {
    if (is_target(each)) names.push_back(each.name);
  }
  return names;
}

// Puts the targets of the recipe in the place of those of the model.
void replace_targets(SampleSpec& sample, const ExpressionOptions& options) {
  if (options.targets.empty()) return;
  const auto place = std::ranges::find_if(sample.tensors, is_target) - sample.tensors.begin();
  std::erase_if(sample.tensors, is_target);
  std::vector<TensorSpec> targets;
  for (const ExpressionTarget& each : options.targets) {
    targets.push_back({each.name, at::kFloat, each.shape});
    targets.back().role = TensorRole::kTarget;
  }
  sample.tensors.insert(sample.tensors.begin() + place, targets.begin(), targets.end());
}

using Forward = std::function<Tensors(const Tensors&)>;
using SharedExpressions = std::shared_ptr<const Expressions>;

// Returns forward() with the quantities behind its results, of inputs in `type` where that is
// given. Where autograd is off, it is on for the pass, whose results are then detached.
Forward with_quantities(Forward own, SharedExpressions expressions,
                        std::optional<at::ScalarType> type) {
  return [own = std::move(own), type, expressions](const Tensors& inputs) {
    const bool was_on = c10::GradMode::is_enabled();
    const c10::AutoGradMode on(true);
    Tensors variables;
    for (const at::Tensor& each : inputs) {
      const bool varies = each.is_floating_point();
      const at::Tensor typed = varies && type ? each.to(*type) : each;
      const bool is_leaf = varies && !typed.requires_grad();
      variables.push_back(is_leaf ? typed.detach().requires_grad_(true) : typed);
    }
    Tensors results = own(variables);
    for (at::Tensor& each : expressions->quantities(variables, results)) {
      results.push_back(each.to(results.front().scalar_type()));
    }
    if (!was_on) {
      for (at::Tensor& each : results) each = each.detach();
    }
    return results;
  };
}

// Returns the sum of the samples' losses, each times its weight where the batch has weights.
UnitLoss loss_with(SharedExpressions expressions) {
  return [expressions](const TensorMap& outputs, const Microbatch& microbatch) {
    TensorMap known = microbatch.tensors;
    for (const NamedTensor& each : outputs) known.set(each.name, each.tensor);
    const at::Tensor losses = expressions->loss(known).to(at::kDouble);
    const at::Tensor* const weights = microbatch.tensors.find(kSampleWeights);
    if (weights == nullptr) {
      // Each sample counts, whatever targets it has.
      return LossTerms{losses.sum(),
                       at::full({}, losses.size(0), losses.options().requires_grad(false))};
    }
    const LossTargets weighted(losses.detach(), *weights, microbatch.sample_ids);
    weighted.check_weights();
    const at::Tensor each = weighted.weights_for(losses);
    return LossTerms{(losses * each).sum(), each.sum()};
  };
}

}  // namespace

RowModel with_expression(RowModel row, const LossOptions& loss) {
  const ExpressionOptions* const options = expression_of(loss);
  if (options == nullptr) return row;
  if (row.loss || row.units.size() != 1) {
    throw UsageError(row.loss ? "loss = \"expression\": the network has a loss of its own"
                              : "loss = \"expression\" is for a network of one unit, not of " +
                                    std::to_string(row.units.size()),
                     "derivatives lead through the whole network: give it as one unit");
  }
  replace_targets(row.sample, *options);
  NamedUnit& unit = row.units.front();
  std::vector<std::string> inputs = unit.flow.takes, outputs;
  if (inputs.empty()) inputs.push_back(row.sample.input().name);
  for (const UnitTensor& each : unit.flow.gives) outputs.push_back(each.name);
  const auto expressions = std::make_shared<const Expressions>(*options, inputs, outputs,
                                                               target_names(row.sample, *options));
  const std::optional<at::ScalarType> type = unit.flow.gives.front().type;
  unit.make = [make = std::move(unit.make), expressions, type] {
    UnitModule made = make();
    if (made.module != nullptr)
      made.forward = with_quantities(std::move(made.forward), expressions, type);
    return made;
  };
  for (const Quantity& each : options->quantities) {
    unit.flow.gives.push_back({each.name, each.shape, type});
  }
  row.loss = loss_with(expressions);
  return row;
}

void add_expression(ModelTraits& traits, const ExpressionOptions& options) {
  replace_targets(traits.sample, options);
  for (const Quantity& each : options.quantities) {
    traits.output_tensors.push_back({each.name, at::kFloat, each.shape});
  }
  traits.units = 1;
  traits.units_are = "the whole network";
  traits.max_stages = 1;
  traits.stages_key = {};
  traits.has_meta_kernels = false;
}

}  // namespace troika
