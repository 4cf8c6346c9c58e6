#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/models/row/expression_row.h>
#include <troika/models/row/row_model.h>
#include <troika/models/row/thrown.h>
#include <troika/nn/autocast.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/module_unit.h>
#include <troika/nn/random_draws.h>

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace troika {
namespace {

// The types that modules compute in.
struct RunType {
  explicit RunType(at::ScalarType type)
      : narrow(type == at::kBFloat16 || type == at::kHalf),
        casts(type),
        held(narrow ? at::kFloat : type) {}
  bool narrow;
  at::ScalarType casts;  // of products
  at::ScalarType held;   // of parameters, inputs and outputs

  [[nodiscard]] at::Tensor of(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.is_floating_point() ? tensor.to(held) : tensor;
  }
};

std::function<Tensors(const Tensors&)> in_type(std::function<Tensors(const Tensors&)> forward,
                                               RunType type) {
  return [forward = std::move(forward), type](const Tensors& inputs) {
    Tensors arguments, outputs;
    for (const at::Tensor& each : inputs) arguments.push_back(type.of(each));
    std::optional<Autocast> autocast;
    if (type.narrow && !arguments.empty()) autocast.emplace(type.casts, arguments[0]);
    const Tensors given = naming_the_thrower("forward()", [&] { return forward(arguments); });
    for (const at::Tensor& each : given) outputs.push_back(type.of(each));
    return outputs;
  };
}

void refuse_frozen(const std::string& prefix, const torch::nn::Module& module) {
  for (const NamedTensor& each : detail::parameters_of(module)) {
    if (each.tensor.requires_grad()) continue;
    throw UsageError("parameter " + quote(prefix + each.name, 200) + " requires no gradient",
                     "register_buffer() is for values that are kept and not trained");
  }
}

// The unit as a run trains it: its draws keyed, its tensors in the types of the run.
NamedUnit prepared(const NamedUnit& unit, RunType type, std::uint64_t seed, int data_rank) {
  struct Made {
    std::map<std::string, at::Tensor> values;
  };
  const auto made = std::make_shared<Made>();
  const std::string prefix = unit.prefix.value_or(unit.name + ".");
  NamedUnit own = unit;
  own.make = [=] {
    const detail::EarlierDraws restored(at::kCPU, detail::generator_states(at::kCPU));
    detail::seed_generators(at::kCPU, stream_key(seed, "initial values of " + unit.name));
    UnitModule module = naming_the_thrower("the module of unit " + quote(unit.name, 200),
                                           [&] { return unit.make(); });
    if (module.module == nullptr) return module;  // the unit says so
    refuse_frozen(prefix, *module.module);
    for (const NamedTensor& each : detail::trained_of(*module.module)) {
      made->values[prefix + each.name] = each.tensor.detach().clone();
    }
    module.forward = in_type(std::move(module.forward), type);
    return module;
  };
  own.describe = [made, narrow = type.narrow, more = unit.describe](ParameterSpec& spec) {
    // An adapter's pair, which is not the module's own, has its initial values from its spec.
    const auto found = made->values.find(spec.name);
    if (found != made->values.end()) spec.initializer = Initializer::given(found->second);
    spec.decays = spec.shape.size() > 1;
    spec.keep_fp32 = narrow;
    if (more) more(spec);
  };
  if (!own.seed) own.seed = stream_key(seed, "data rank " + std::to_string(data_rank));
  own.sample_seed = stream_key(seed, "samples");
  for (UnitTensor& each : own.flow.gives) {
    if (!each.type || at::isFloatingType(*each.type)) each.type = type.held;
  }
  return own;
}

UnitLoss loss_of(const RowModel& row, const LossOptions& recipe, RunType type) {
  if (!row.loss) {
    return [loss = std::shared_ptr(recipe.kind().make(recipe.options())),
            target = row.sample.target().name](const TensorMap& outputs,
                                               const Microbatch& microbatch) {
      return loss->of(outputs[0], LossTargets::of(microbatch, target));
    };
  }
  return [loss = row.loss, type](const TensorMap& outputs, const Microbatch& microbatch) {
    Microbatch typed = microbatch;
    for (NamedTensor& each : typed.tensors) each.tensor = type.of(each.tensor);
    return naming_the_thrower("the loss", [&] { return loss(outputs, typed); });
  };
}

double parameters_of_unit(const Unit& unit) {
  double sum = 0;
  for (const ParameterSpec& spec : unit.specs()) sum += static_cast<double>(spec.global_count());
  return sum;
}

// Costs that were left as they are say nothing; parameters then do.
void set_costs(Model& model, const std::vector<NamedUnit>& units) {
  const bool unsaid = std::ranges::all_of(units, [](const NamedUnit& e) { return e.cost == 1; });
  for (std::size_t i = 0; i < units.size(); ++i) {
    // Each parameter in one product of a target: what is certain without looking inside.
    const double flops = 6 * parameters_of_unit(*model.units[i]);
    model.facts.flops_per_sample += flops;
    model.facts.unit_flops.push_back(unsaid ? flops : units[i].cost);
  }
}

}  // namespace

void check_row(const RowModel& row) {
  const auto has = [&](TensorRole role) {
    return std::ranges::any_of(row.sample.tensors,
                               [&](const TensorSpec& each) { return each.role == role; });
  };
  if (!has(TensorRole::kInput) || !has(TensorRole::kTarget)) {
    throw UsageError("sample() names no input, or no target",
                     "a sample has one of each at least, with role = TensorRole::kTarget");
  }
  if (row.units.empty()) throw UsageError("units() gives no unit");
  std::set<std::string> units;
  for (const NamedUnit& unit : row.units) {
    if (units.insert(unit.name).second) continue;
    throw UsageError("two units are called " + quote(unit.name, 200),
                     "a unit's name begins those of its parameters");
  }
  std::vector<std::string> known;
  for (const TensorSpec& each : row.sample.tensors) known.push_back(each.name);
  for (const NamedUnit& unit : row.units) {
    for (const std::string& name : unit.flow.takes) {
      if (std::ranges::count(known, name) > 0) continue;
      throw UsageError("unit " + quote(unit.name, 200) + " takes " + quote(name, 200) +
                           ", which neither a unit before it nor the sample has",
                       "the names so far are " + join(known, ", "));
    }
    for (const UnitTensor& each : unit.flow.gives) known.push_back(each.name);
  }
  (void)flows_of(with_default_takes(row.units));
}

ModelTraits traits_of_row(const RowModel& row) {
  ModelTraits traits;
  traits.sample = row.sample;
  traits.sample.count_tokens();
  if (!row.loss) traits.sample.allow_weights();
  traits.units = std::max<std::int64_t>(1, std::ssize(row.units));
  traits.units_are = "those that the library gives";
  traits.max_stages = traits.units;
  traits.stages_key = "units";
  traits.has_meta_kernels = false;
  traits.has_own_loss = static_cast<bool>(row.loss);
  if (!row.units.empty() && !row.units.back().flow.gives.empty()) {
    for (const UnitTensor& each : row.units.back().flow.gives) {
      traits.output_tensors.push_back({each.name, each.type.value_or(at::kFloat), each.shape});
    }
    const TensorSpec& target = row.sample.target();
    const bool is_class = target.dtype == at::kLong && target.range > 0;
    traits.outputs =
        is_class ? target.range : c10::multiply_integers(row.units.back().flow.gives.front().shape);
  }
  return traits;
}

Model build_row(const RowModel& given, const LossOptions& loss, std::uint64_t seed,
                const ModelLayout& layout) {
  const RowModel row = with_expression(given, loss);
  const RunType type(layout.type);
  std::vector<NamedUnit> units;
  for (const NamedUnit& each : row.units) {
    units.push_back(prepared(each, type, seed, layout.data.rank()));
  }
  units = with_default_takes(std::move(units));
  const std::vector<std::vector<UnitTensor>> flows = flows_of(units);
  Model model;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const bool is_last = i + 1 == units.size();
    model.units.push_back(std::make_unique<ModuleUnit>(
        units[i], flows[i], flows[i + 1], is_last ? loss_of(row, loss, type) : UnitLoss(),
        layout.recompute, layout.type));
    model.facts.pads_microbatches |= units[i].runs_without_samples;
  }
  set_costs(model, units);
  SampleSpec sample = row.sample;
  sample.count_tokens();
  model.facts.count_targets(sample.targets_per_sample);
  return model;
}

}  // namespace troika
