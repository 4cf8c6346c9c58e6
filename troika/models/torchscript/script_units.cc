#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/models/torchscript/script_units.h>

#include <map>
#include <sstream>

namespace troika {
namespace {

constexpr std::string_view kFlatten = "flatten";

ScriptUnit unit_of(const std::string& name, std::string prefix, Script script) {
  auto module = std::make_shared<ScriptModule>(std::move(script));
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

std::string shapes_of(const Tensors& tensors) {
  std::ostringstream text;
  for (const at::Tensor& each : tensors) {
    text << (&each == tensors.data() ? "" : ", ") << each.sizes();
  }
  return text.str();
}

}  // namespace

std::vector<ScriptUnit> script_units(const TorchscriptOptions& options, const Script& script) {
  if (options.units.empty()) return {unit_of("module", "", script)};
  std::vector<ScriptUnit> units;
  for (const std::string& name : options.units) {
    if (auto child = script.child(name)) {
      units.push_back(unit_of(name, name + ".", *std::move(child)));
    } else if (name == kFlatten) {
      units.push_back(flatten_unit());
    } else {
      fail_no_child(script, name);
    }
  }
  check_held(script, units);
  return units;
}

std::vector<Tensors> run_units(std::span<const ScriptUnit> units, const Tensors& inputs) {
  const at::NoGradGuard no_grad;
  std::vector<Tensors> outputs;
  const Tensors* given = &inputs;
  outputs.reserve(units.size());
  for (const ScriptUnit& unit : units) {
    unit.module->eval();
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
      if (each.dim() > 0 && each.size(0) == inputs.front().size(0)) continue;
      throw UsageError("unit " + quote(unit.name, 200) + " gives " + shapes_of(outputs.back()) +
                           " for " + plural(inputs.front().size(0), "sample"),
                       "the first dimension of what a unit gives is that of the samples");
    }
    given = &outputs.back();
  }
  return outputs;
}

void check_units(const Script& script, std::span<const ScriptUnit> units, const Tensors& inputs) {
  if (units.size() == 1 && units.front().prefix.empty()) return;
  const Tensors found = run_units(units, inputs).back();
  const at::NoGradGuard no_grad;
  ScriptModule whole(script);
  whole.eval();
  const Tensors expected = whole.forward(inputs);
  const std::string hint =
      "between the units forward() may only flatten; what else it computes goes into a child";
  if (found.size() != expected.size() || shapes_of(found) != shapes_of(expected)) {
    throw UsageError("the last unit, " + quote(units.back().name, 200) + ", gives " +
                         shapes_of(found) + ", and forward() of " + shown_path(script.path) +
                         " gives " + shapes_of(expected),
                     hint);
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (at::allclose(found[i], expected[i], 1e-4, 1e-5, /*equal_nan=*/true)) continue;
    throw UsageError("the units of " + shown_path(script.path) +
                         ", one after the other, give other numbers than its forward()",
                     hint);
  }
}

}  // namespace troika
