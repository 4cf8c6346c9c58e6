#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/models/torchscript/script_units.h>
#include <troika/nn/module_tensors.h>

#include <map>
#include <sstream>

namespace troika {
namespace {

constexpr std::string_view kFlatten = "flatten";

ScriptUnit unit_of(const std::string& name, std::string prefix, Script script,
                   std::vector<std::string> outputs) {
  auto module = std::make_shared<ScriptModule>(std::move(script), std::move(outputs));
  return {name, std::move(prefix), module,
          [module](const Tensors& inputs) { return module->forward(inputs); }};
}

ScriptUnit flatten_unit() {
  return {std::string(kFlatten), std::string(kFlatten) + ".",
          std::make_shared<torch::nn::Module>("flatten"), [](const Tensors& inputs) {
            Tensors outputs;
            for (const at::Tensor& each : inputs) outputs.push_back(each.flatten(1));
            return outputs;
          }};
}

[[noreturn]] void fail_no_child(const Script& script, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& each : script.module.named_children()) names.push_back(each.name);
  std::string message = shown_path(script.path) + " has no child " + quote(name, 200);
  if (const auto likely = nearest(name, std::span(names))) {
    message += "; did you mean '" + *likely + "'?";
  }
  throw UsageError(message,
                   "units are children of the module, by their dotted names, and the "
                   "built-in flatten; it has " +
                       join(names, ", "));
}

// Each parameter and buffer of the file belongs to one unit.
void check_held(const Script& script, std::span<const ScriptUnit> units) {
  const auto check_name = [&](const std::string& what, const std::string& name) {
    std::vector<std::string> holders;
    for (const ScriptUnit& unit : units) {
      if (name.starts_with(unit.prefix)) holders.push_back(unit.name);
    }
    if (holders.size() == 1) return;
    throw UsageError(shown_path(script.path) + ": " + what + " " + quote(name, 200) +
                         (holders.empty() ? " belongs to no unit"
                                          : " belongs to the units " + join(holders, " and ")),
                     "the units together are the whole module, each of its parts once");
  };
  for (const auto& each : script.module.named_parameters()) check_name("parameter", each.name);
  for (const auto& each : script.module.named_buffers()) check_name("buffer", each.name);
}

// A tensor with two names is trained by one unit: two would make two of it.
void check_separate(const Script& script, std::span<const ScriptUnit> units) {
  struct Held {
    std::string unit, name;
  };
  std::map<const void*, Held> held;
  for (const ScriptUnit& unit : units) {
    std::vector<NamedTensor> tensors = detail::parameters_of(*unit.module);
    for (NamedTensor& each : detail::buffers_of(*unit.module)) tensors.push_back(std::move(each));
    for (const NamedTensor& each : tensors) {
      if (each.tensor.numel() == 0) continue;
      const Held own{unit.name, unit.prefix + each.name};
      const auto [first, is_new] = held.emplace(each.tensor.const_data_ptr(), own);
      if (is_new || first->second.unit == unit.name) continue;
      throw UsageError(shown_path(script.path) + ": " + quote(first->second.name, 200) + " and " +
                           quote(own.name, 200) + " are one tensor, which belongs to two units, " +
                           first->second.unit + " and " + unit.name,
                       "weights that are tied stand in one unit, as does a child that forward() "
                       "calls twice");
    }
  }
}

}  // namespace

std::string shapes_of(const Tensors& tensors) {
  std::ostringstream text;
  for (const at::Tensor& each : tensors) {
    text << (&each == tensors.data() ? "" : ", ") << each.sizes();
  }
  return text.str();
}

std::vector<ScriptUnit> script_units(const TorchscriptOptions& options, const Script& script) {
  const std::vector<std::string> outputs = output_names(options);
  if (options.units.empty()) return {unit_of("module", "", script, outputs)};
  std::vector<ScriptUnit> units;
  for (const std::string& name : options.units) {
    if (auto child = script.child(name)) {
      const bool is_last = &name == &options.units.back();
      units.push_back(unit_of(name, name + ".", *std::move(child),
                              is_last ? outputs : std::vector<std::string>()));
    } else if (name == kFlatten) {
      units.push_back(flatten_unit());
    } else {
      fail_no_child(script, name);
    }
  }
  check_held(script, units);
  check_separate(script, units);
  return units;
}

std::vector<Tensors> run_units(std::span<const ScriptUnit> units, const Tensors& inputs,
                               Mode mode) {
  const at::NoGradGuard no_grad;
  std::vector<Tensors> outputs;
  const Tensors* given = &inputs;
  outputs.reserve(units.size());
  for (const ScriptUnit& unit : units) {
    unit.module->train(mode == Mode::kTrain);
    try {
      outputs.push_back(unit.forward(*given));
    } catch (const UsageError& error) {
      const std::string from =
          &unit == units.data() ? "the inputs" : "what " + (&unit)[-1].name + " gives";
      throw UsageError("unit " + quote(unit.name, 200) + " does not take " + from + ", " +
                           shapes_of(*given) + ": " + error.what(),
                       "units are called one after the other, with nothing in between: name "
                       "flatten where forward() flattens");
    }
    for (const at::Tensor& each : outputs.back()) {
      if (each.is_complex()) {  // it would pass to the next unit without a gradient
        throw UsageError("unit " + quote(unit.name, 200) + " gives complex numbers, " +
                             c10::toString(each.scalar_type()),
                         "real numbers pass between units: torch.view_as_real() makes them");
      }
      if (each.dim() > 0 && each.size(0) == inputs.front().size(0)) continue;
      throw UsageError("unit " + quote(unit.name, 200) + " gives " + shapes_of(outputs.back()) +
                           " for " + plural(inputs.front().size(0), "sample"),
                       "the first dimension of what a unit gives is that of the samples");
    }
    given = &outputs.back();
  }
  return outputs;
}

}  // namespace troika
