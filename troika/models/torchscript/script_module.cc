#include <ATen/ATen.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/models/torchscript/script_file.h>
#include <troika/models/torchscript/script_module.h>
#include <troika/nn/module_tree.h>
#include <troika/nn/script_error.h>

#include <map>
#include <sstream>

namespace troika {
namespace {

// Says what to do about what operators throw whose own words do not say it; empty for others.
std::string hint_of_exception(const std::string& exception, bool is_training) {
  if (exception.find("Expected more than 1 value per channel") != std::string::npos) {
    return is_training ? "batch-norm in training takes mean and deviation from more than one "
                         "sample: raise train.micro_batch_size"
                       : "batch-norm without running statistics (track_running_stats = False) "
                         "takes those of the batch, which one sample has not: keep running "
                         "statistics, or use group or layer norm";
  }
  if (exception.find("index out of range in self") != std::string::npos) {
    return "an id is not among the rows of an embedding: `classes` of [model.inputs] says how many "
           "ids there are";
  }
  return "";
}

std::string shown_inputs(const Tensors& inputs) {
  std::ostringstream given;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    given << (i == 0 ? "it was given " : ", ") << c10::toString(inputs[i].scalar_type()) << " "
          << inputs[i].sizes();
  }
  return given.str();
}

std::map<std::string, at::Tensor> tensors_of(const torch::jit::Module& script) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& each : script.named_parameters()) tensors[each.name] = each.value;
  for (const auto& each : script.named_buffers()) tensors[each.name] = each.value;
  return tensors;
}

void take_tensors(const c10::IValue& value, Tensors& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) tensors.push_back(each);
  } else if (value.isTuple()) {
    for (const c10::IValue& each : value.toTupleRef().elements()) take_tensors(each, tensors);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) take_tensors(each, tensors);
  } else if (value.isGenericDict()) {
    for (const auto& each : value.toGenericDict()) take_tensors(each.value(), tensors);
  }
}

[[noreturn]] void fail_no_output(const std::filesystem::path& path, const std::string& name,
                                 const c10::Dict<c10::IValue, c10::IValue>& named) {
  std::vector<std::string> keys;
  for (const auto& each : named) keys.push_back(each.key().toStringRef());
  const auto near = nearest(name, keys);
  throw UsageError(shown_path(path) + " returns a dictionary without " + quote(name) +
                       (near ? "; did you mean " + quote(*near) + "?" : ""),
                   "[model.outputs] has names of its keys: " + join(keys, ", "));
}

}  // namespace

Script Script::load(const std::filesystem::path& path,
                    const std::optional<std::filesystem::path>& evaluation_path) {
  Script script{path, load_script(path), {}};
  bool trains = false;
  for (const auto& each : script.module.named_parameters()) {
    trains = trains || each.value.requires_grad();
  }
  if (!trains) {
    throw UsageError(shown_path(path) + " has no parameter to train",
                     "torch.jit.freeze() makes constants of them: save the module before it");
  }
  if (evaluation_path) {
    script.evaluation = load_script(*evaluation_path);
    script.evaluation->eval();
  }
  return script;
}

std::optional<Script> Script::child(const std::string& name) const {
  std::optional<Script> found;
  for (const auto& each : module.named_modules()) {
    if (each.name == name) found = Script{path, each.value, {}};
  }
  if (!found || !evaluation) return found;
  for (const auto& each : evaluation->named_modules()) {
    if (each.name == name) found->evaluation = each.value;
  }
  return found->evaluation ? found : std::nullopt;
}

ScriptModule::ScriptModule(Script script, std::vector<std::string> outputs)
    : torch::nn::Module("script"),
      script_(std::move(script)),
      outputs_(std::move(outputs)),
      trained_(script_.module) {
  ModuleTree tree(*this);
  for (const auto& each : script_.module.named_parameters()) {
    // A frozen one is a value that is kept and written, as a buffer is.
    if (each.value.requires_grad()) {
      tree.add_parameter(each.name, each.value);
    } else {
      tree.add_buffer(each.name, each.value);
    }
  }
  for (const auto& each : script_.module.named_buffers()) tree.add_buffer(each.name, each.value);
  if (!script_.evaluation) return;
  evaluated_.emplace(*script_.evaluation);
  const auto own = tensors_of(script_.module), others = tensors_of(*script_.evaluation);
  for (const auto& [name, tensor] : own) {
    const auto found = others.find(name);
    if (found == others.end() || found->second.sizes() != tensor.sizes()) {
      throw UsageError("the file for evaluations has no tensor " + quote(name, 200) + " as " +
                           shown_path(script_.path) + " has",
                       "trace the same module twice: in train mode, and in eval mode");
    }
    shared_.push_back({tensor, found->second});
  }
}

void ScriptModule::train(bool on) {
  torch::nn::Module::train(on);
  script_.module.train(on);
}

void ScriptModule::share_with_evaluation() {
  const at::NoGradGuard no_grad;
  for (Shared& each : shared_) {
    if (each.trained.const_data_ptr() == each.evaluated.const_data_ptr()) continue;
    each.evaluated.set_data(each.trained);
  }
}

Tensors ScriptModule::tensors_of_result(const c10::IValue& result) const {
  Tensors tensors;
  const bool is_named = !outputs_.empty() && result.isGenericDict() &&
                        result.toGenericDict().keyType()->kind() == c10::TypeKind::StringType;
  if (!is_named) {
    take_tensors(result, tensors);
    return tensors;
  }
  const auto named = result.toGenericDict();
  for (const std::string& name : outputs_) {
    const auto found = named.find(name);
    if (found == named.end()) fail_no_output(script_.path, name, named);
    take_tensors(found->value(), tensors);
  }
  return tensors;
}

c10::IValue ScriptModule::call(Callee& callee, const Tensors& inputs) const {
  std::vector<c10::IValue> arguments;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    arguments.emplace_back(callee.effects.writes_to(i) ? inputs[i].clone() : inputs[i]);
  }
  try {
    return callee.module.forward(std::move(arguments));
  } catch (const std::exception& error) {
    const std::string exception = script_error(error);
    const std::string hint = hint_of_exception(exception, is_training());
    throw UsageError(shown_path(script_.path) + ": forward() throws: " + exception,
                     hint.empty() ? shown_inputs(inputs) : hint);
  }
}

Tensors ScriptModule::forward(const Tensors& inputs) {
  const bool evaluates = evaluated_ && !is_training();
  if (evaluates) share_with_evaluation();
  Callee& callee = evaluates ? *evaluated_ : trained_;
  const torch::jit::GraphOptimizerEnabledGuard plainly(false);
  const bool wants_gradients = at::GradMode::is_enabled();
  const at::AutoGradMode autograd(wants_gradients || callee.effects.differentiates());
  callee.assigned.lend();
  const c10::IValue result = call(callee, inputs);
  callee.assigned.take_back();
  Tensors outputs = tensors_of_result(result);
  if (wants_gradients) return outputs;
  for (at::Tensor& each : outputs) {
    if (each.requires_grad()) each = each.detach();
  }
  return outputs;
}

void ScriptModule::save_with(const std::filesystem::path& from, const std::filesystem::path& to,
                             const std::vector<NamedTensor>& values) {
  torch::jit::Module script = load_script(from);
  const auto tensors = tensors_of(script);
  {
    const at::NoGradGuard no_grad;
    for (const NamedTensor& each : values) {
      const auto found = tensors.find(each.name);
      if (found != tensors.end()) at::Tensor(found->second).copy_(each.tensor);
    }
  }
  std::ostringstream bytes;
  script.save(bytes);
  write_file_atomically(to, bytes.str());
}

}  // namespace troika
