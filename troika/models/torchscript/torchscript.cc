#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/loss/expression.h>
#include <troika/models/row/expression_row.h>
#include <troika/models/row/network_result.h>
#include <troika/models/torchscript/script_comparison.h>
#include <troika/models/torchscript/script_file.h>
#include <troika/models/torchscript/script_units.h>
#include <troika/models/torchscript/torchscript.h>
#include <troika/nn/autocast.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/module_unit.h>
#include <troika/nn/random_draws.h>

#include <torch/torch.h>

#include <map>
#include <sstream>

namespace troika {
namespace {

// How many samples the module is tried with when a run starts.
constexpr std::int64_t kTriedSamples = 2;

at::ScalarType type_of(ScriptDtype dtype, at::ScalarType floating) {
  return dtype == ScriptDtype::kInt64 ? at::kLong : floating;
}

bool is_narrow(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf;
}

Script load(const TorchscriptOptions& options) {
  return Script::load(options.path, evaluation_file(options));
}

// The type of numbers that the file was written for, which it is tried in.
at::ScalarType type_of_file(const Script& script) {
  for (const auto& each : script.module.named_parameters()) {
    if (each.value.is_floating_point()) return each.value.scalar_type();
  }
  return at::kFloat;
}

// Says that the file at `path` has its `own` type written into its operators, where an exception of
// LibTorch may have come of that in a run of another `type`. Returns the error itself otherwise.
UsageError error_of_type(const UsageError& error, const std::filesystem::path& path,
                         at::ScalarType own, at::ScalarType type) {
  const std::string_view text = error.what();
  const auto mentions = [text](std::string_view name, std::string_view in_capitals) {
    return text.find(name) != std::string_view::npos ||
           text.find(in_capitals) != std::string_view::npos;
  };
  if (own == type || !mentions("float", "Float") || !mentions("double", "Double")) return error;
  const auto precision = [](at::ScalarType each) { return each == at::kDouble ? "fp64" : "fp32"; };
  const std::string name = own == at::kDouble ? "float64" : "float32";
  return UsageError(shown_path(path) + " has " + name +
                        " written into its operators, which precision = \"" + precision(type) +
                        "\" does not change: " + error.what(),
                    std::string("train with precision = \"") + precision(own) +
                        "\"; a trace keeps the types of its example, and a script takes those of "
                        "its inputs where it names none");
}

// A module as its unit calls it, in the type of the run. bf16 and fp16 come by autocast, and the
// outputs are fp32 then. Those of the last unit are as `result` says; others may be any.
class Forward {
 public:
  Forward(std::function<Tensors(const Tensors&)> forward, std::optional<NetworkResult> result,
          const Script& file, at::ScalarType type)
      : forward_(std::move(forward)),
        result_(std::move(result)),
        file_(file),
        own_type_(type_of_file(file)),
        type_(type) {}

  Tensors operator()(const Tensors& inputs) const {
    const at::ScalarType floating = is_narrow(type_) ? at::kFloat : type_;
    Tensors arguments;
    for (const at::Tensor& each : inputs) {
      arguments.push_back(each.is_floating_point() ? each.to(floating) : each);
    }
    std::optional<Autocast> autocast;
    if (is_narrow(type_)) autocast.emplace(type_, arguments[0]);
    Tensors outputs = call(arguments, floating);
    if (result_) outputs = result_->arrange(outputs, inputs[0].size(0));
    for (at::Tensor& each : outputs) {
      if (each.is_floating_point()) each = each.to(floating);
    }
    return outputs;
  }

 private:
  [[nodiscard]] Tensors call(const Tensors& arguments, at::ScalarType floating) const {
    try {
      return forward_(arguments);
    } catch (const UsageError& error) {
      throw error_of_type(error, file_.path, own_type_, floating);
    }
  }

  std::function<Tensors(const Tensors&)> forward_;
  std::optional<NetworkResult> result_;
  Script file_;              // shares its tensors, which become those of the run
  at::ScalarType own_type_;  // in which it was written
  at::ScalarType type_;
};

// One of the whole numbers is the largest, which an embedding may not have.
at::Tensor sample_inputs(const ScriptTensor& spec, std::int64_t samples, at::ScalarType floating) {
  std::vector<std::int64_t> shape = spec.shape;
  shape.insert(shape.begin(), samples);
  if (spec.dtype == ScriptDtype::kFloat32) return at::randn(shape).to(floating);
  const std::int64_t numbers = std::max<std::int64_t>(1, spec.classes);
  const at::Tensor drawn = at::randint(numbers, shape, at::kLong);
  if (drawn.numel() > 0) drawn.view(-1)[0].fill_(numbers - 1);
  return drawn;
}

// What forward() takes: a loss of its own takes the targets too.
std::vector<ScriptTensor> arguments_of(const TorchscriptOptions& options, const LossKind& loss) {
  std::vector<ScriptTensor> arguments = options.inputs;
  if (!loss.is_of_model()) return arguments;
  arguments.insert(arguments.end(), options.targets.begin(), options.targets.end());
  return arguments;
}

Tensors sample_inputs(const TorchscriptOptions& options, const LossKind& loss, std::int64_t samples,
                      at::ScalarType floating) {
  Tensors inputs;
  for (const ScriptTensor& each : arguments_of(options, loss)) {
    inputs.push_back(sample_inputs(each, samples, floating));
  }
  return inputs;
}

// What the units give for one sample, in the types of the run. Those before the last are tried.
std::vector<std::vector<UnitTensor>> outputs_of(const TorchscriptOptions& options,
                                                const LossKind& loss, const NetworkResult& result,
                                                std::span<const ScriptUnit> units,
                                                at::ScalarType file, at::ScalarType type) {
  std::vector<std::vector<UnitTensor>> all;
  if (units.size() > 1) {
    const detail::EarlierDraws restored(at::kCPU, detail::generator_states(at::kCPU));
    for (const Tensors& outputs :
         run_units(units, sample_inputs(options, loss, kTriedSamples, file), Mode::kEvaluate)) {
      std::vector<UnitTensor>& gives = all.emplace_back();
      for (const at::Tensor& each : outputs) {
        const std::string name = "hidden" + (gives.empty() ? "" : std::to_string(gives.size()));
        const bool floating = each.is_floating_point();
        gives.push_back(
            {name, each.sizes().slice(1).vec(), floating ? type : each.scalar_type(), floating});
      }
    }
  }
  all.resize(units.size());
  all.back().clear();
  for (const ScriptTensor& each : result.gives()) {
    all.back().push_back(
        {each.name, each.shape, type_of(each.dtype, type), each.dtype == ScriptDtype::kFloat32});
  }
  return all;
}

// Starts with the values of the file.
std::function<void(ParameterSpec&)> describe_by(const ScriptUnit& script, bool narrow) {
  std::map<std::string, at::Tensor> values;
  for (const NamedTensor& each : detail::trained_of(*script.module)) {
    values[script.prefix + each.name] = each.tensor.detach().clone();
  }
  return [values = std::move(values), narrow](ParameterSpec& spec) {
    spec.initializer = Initializer::given(values.at(spec.name));
    spec.decays = spec.shape.size() > 1;
    spec.keep_fp32 = narrow;
  };
}

// Buffers go with parameters, which are fp32 unless the run is in fp64.
void narrow_buffers(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& each : detail::buffers_of(module)) {
    if (each.tensor.is_floating_point()) each.tensor.set_data(each.tensor.to(at::kFloat));
  }
}

std::vector<NamedUnit> named_units(const TorchscriptOptions& options, const LossKind& loss,
                                   const NetworkResult& result, const Script& file,
                                   at::ScalarType type, std::uint64_t draws) {
  const bool narrow = is_narrow(type);
  const std::vector<ScriptUnit> scripts = script_units(options, file);
  const auto outputs =
      outputs_of(options, loss, result, scripts, type_of_file(file), narrow ? at::kFloat : type);
  std::vector<NamedUnit> units;
  for (std::size_t i = 0; i < scripts.size(); ++i) {
    const ScriptUnit& script = scripts[i];
    const bool is_last = i + 1 == scripts.size();
    if (type != at::kDouble) narrow_buffers(*script.module);
    const Forward forward(script.forward, is_last ? std::optional(result) : std::nullopt, file,
                          type);
    NamedUnit& unit = units.emplace_back();
    unit.name = script.name;
    unit.prefix = script.prefix;
    unit.seed = draws;
    unit.make = [module = script.module, forward] { return UnitModule{module, forward}; };
    unit.describe = describe_by(script, narrow);
    unit.flow.gives = outputs[i];
    if (i > 0) continue;
    for (const ScriptTensor& each : arguments_of(options, loss)) {
      unit.flow.takes.push_back(each.name);
    }
  }
  return units;
}

// The units with their loss, where a recipe has written that as well. `draws` keys those of the
// module.
RowModel row_of(const TorchscriptOptions& options, const LossOptions& loss, const Script& file,
                at::ScalarType type, std::uint64_t draws) {
  const NetworkResult result(options, loss);
  RowModel row;
  for (const ScriptTensor& each : options.inputs) {
    row.sample.tensors.push_back(spec_of(each, TensorRole::kInput));
  }
  for (const ScriptTensor& each : options.targets) {
    row.sample.tensors.push_back(spec_of(each, TensorRole::kTarget));
  }
  row.units = named_units(options, loss.kind(), result, file, type, draws);
  if (expression_of(loss) != nullptr) return with_expression(std::move(row), loss);
  row.loss = result.loss();
  return row;
}

}  // namespace

Model build_torchscript(const TorchscriptOptions& options, const LossOptions& loss,
                        std::uint64_t seed, const ModelLayout& layout) {
  const RowModel row = row_of(options, loss, load(options), layout.type,
                              stream_key(seed, "data rank " + std::to_string(layout.data.rank())));
  const std::vector<NamedUnit> units = with_default_takes(row.units);
  const UnitLoss& unit_loss = row.loss;
  const std::vector<std::vector<UnitTensor>> flows = flows_of(units);
  Model model;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const bool is_last = i + 1 == units.size();
    model.units.push_back(std::make_unique<ModuleUnit>(units[i], flows[i], flows[i + 1],
                                                       is_last ? unit_loss : UnitLoss(),
                                                       layout.recompute, layout.type));
    double parameters = 0;
    for (const ParameterSpec& each : model.units.back()->specs()) {
      parameters += static_cast<double>(each.global_count());
    }
    // Each parameter in one product of a target: what is certain without looking inside.
    model.facts.unit_flops.push_back(6 * parameters);
    model.facts.flops_per_sample += 6 * parameters;
  }
  return model;
}

namespace {

// Finds the input whose ids an embedding of the module does not have, and throws UsageError naming
// it. Each input has its largest id in turn, and the others 0.
void check_ids(const TorchscriptOptions& options, const LossKind& loss, ScriptModule& module,
               const Tensors& inputs) {
  const std::vector<ScriptTensor> arguments = arguments_of(options, loss);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].classes == 0) continue;
    Tensors ids = inputs;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      if (arguments[k].classes == 0) continue;
      ids[k] = at::full_like(ids[k], k == i ? arguments[k].classes - 1 : 0);
    }
    try {
      (void)module.forward(ids);
    } catch (const UsageError& error) {
      if (std::string_view(error.what()).find("index out of range") == std::string_view::npos)
        throw;
      const std::string largest = std::to_string(arguments[i].classes - 1);
      throw UsageError(
          shown_path(options.path) + " takes no " + largest + " in " + quote(arguments[i].name) +
              ", whose classes = " + std::to_string(arguments[i].classes) + ": " + error.what(),
          "`classes` is the number of ids, which is that of the embedding's rows");
    }
  }
}

// A trace may have the number of samples of its example in it, and one sample may lose its
// dimension.
void check_other_samples(const TorchscriptOptions& options, const LossKind& loss,
                         const NetworkResult& result, ScriptModule& module,
                         at::ScalarType floating) {
  for (const std::int64_t samples : {kTriedSamples + 1, std::int64_t{1}}) {
    try {
      const Tensors inputs = sample_inputs(options, loss, samples, floating);
      result.check(result.arrange(module.forward(inputs), samples), samples);
    } catch (const UsageError& error) {
      std::string hint = samples == 1
                             ? "the first dimension is that of the samples: squeeze() takes "
                               "it away from one alone, squeeze(1) or flatten(1) does not"
                             : "a trace keeps sizes that forward() takes from its example: "
                               "let it ask for x.size(0), or -1";
      if (std::string_view(error.hint()).starts_with("batch-norm")) hint = error.hint();
      throw UsageError(
          "forward() takes 2 samples, but not " + std::to_string(samples) + ": " + error.what(),
          hint);
    }
  }
}

// Passes forward as training does; what the loss takes has to lead back to a parameter.
void check_trains(const TorchscriptOptions& options, const NetworkResult& result,
                  ScriptModule& module, const Tensors& inputs) {
  const at::AutoGradMode with_gradients(true);
  module.train();
  const Tensors outputs = result.arrange(module.forward(inputs), kTriedSamples);
  const std::size_t place = result.loss_index();
  if (outputs[place].requires_grad()) return;
  throw UsageError(shown_path(options.path) + ": " + quote(result.gives()[place].name) +
                       " does not depend on a parameter in a way that has a gradient",
                   "torch.no_grad(), detach() and argmax() cut it off: nothing would be trained");
}

// Held-out data leave no trace in the model.
void check_keeps_buffers(const TorchscriptOptions& options, const ScriptModule& module,
                         const Tensors& before) {
  const std::vector<NamedTensor> buffers = detail::buffers_of(module);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (at::allclose(buffers[i].tensor, before[i], 0, 0, /*equal_nan=*/true)) continue;
    throw UsageError(shown_path(options.path) + " changes its buffer " +
                         quote(buffers[i].name, 200) + " in evaluation",
                     "a trace keeps the batch-norm of the mode that it was made in: trace the "
                     "module in eval mode too, and name that file as model.evaluation_path; a "
                     "script asks for self.training");
  }
}

void check_repeats(const TorchscriptOptions& options, const Tensors& once, const Tensors& again) {
  for (std::size_t i = 0; i < once.size(); ++i) {
    if (at::allclose(once[i], again[i], 0, 0, /*equal_nan=*/true)) continue;
    throw UsageError(shown_path(options.path) + " gives other outputs each time in evaluation",
                     "a trace keeps the dropout of the mode that it was made in: trace the module "
                     "in eval mode too, and name that file as model.evaluation_path; in a script, "
                     "functional dropout takes training=self.training");
  }
}

}  // namespace

void check_torchscript(const TorchscriptOptions& options, const LossOptions& loss) {
  const Script script = load(options);
  const NetworkResult result(options, loss);
  const std::vector<std::string> outputs = output_names(options);
  ScriptModule module(script, outputs);
  const detail::EarlierDraws restored(at::kCPU, detail::generator_states(at::kCPU));
  const at::ScalarType floating = type_of_file(script);
  const Tensors inputs = sample_inputs(options, loss.kind(), kTriedSamples, floating);
  const at::NoGradGuard no_grad;
  module.eval();
  const auto tried = [&] { return result.arrange(module.forward(inputs), kTriedSamples); };
  Tensors once;
  try {
    once = tried();
  } catch (const UsageError&) {
    check_ids(options, loss.kind(), module, inputs);
    throw;
  }
  result.check(once, kTriedSamples);
  // Taken now: the first pass may fill what later ones look up.
  Tensors buffers;
  for (const NamedTensor& each : detail::buffers_of(module)) buffers.push_back(each.tensor.clone());
  check_repeats(options, once, tried());
  check_keeps_buffers(options, module, buffers);
  check_other_samples(options, loss.kind(), result, module, floating);
  check_units(script, script_units(options, script), outputs, inputs);
  check_trains(options, result, module, inputs);
}

void check_torchscript_expression(const TorchscriptOptions& options, const LossOptions& loss) {
  const Script script = load(options);
  try_expression(row_of(options, loss, script, type_of_file(script), 0));
}

std::vector<NamedTensor> script_tensors(const std::filesystem::path& path) {
  const torch::jit::Module script = load_script(path);
  std::vector<NamedTensor> tensors;
  for (const auto& each : script.named_parameters()) tensors.push_back({each.name, each.value});
  for (const auto& each : script.named_buffers()) tensors.push_back({each.name, each.value});
  return tensors;
}

void save_torchscript(const std::filesystem::path& from, const std::filesystem::path& to,
                      const std::vector<NamedTensor>& values) {
  ScriptModule::save_with(from, to, values);
}

}  // namespace troika
