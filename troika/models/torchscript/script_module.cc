#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/models/torchscript/script_module.h>

#include <map>
#include <sstream>

namespace troika {
namespace {

std::string first_line_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// The interpreter's errors quote the traceback of the script; its last line says what is wrong.
std::string last_line_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  return text.substr(text.rfind('\n') + 1);
}

torch::jit::Module load_script(const std::filesystem::path& path) {
  const std::string name = shown_path(path);
  if (!std::filesystem::is_regular_file(path)) {
    throw UsageError("there is no file " + name,
                     "torch.jit.script(module).save(PATH) or torch.jit.trace(...) writes one");
  }
  try {
    return torch::jit::load(path.string(), at::Device(at::kCPU));
  } catch (const std::exception& error) {
    throw UsageError(name + " is no TorchScript that can be loaded here: " + first_line_of(error),
                     "write it with torch.jit.script(module).save(PATH); torch.save() writes "
                     "another format");
  }
}

// The module of a dotted path, made where it is not there yet.
torch::nn::Module& descend(torch::nn::Module& root, const std::string& path,
                           std::map<std::string, std::shared_ptr<torch::nn::Module>>& made) {
  if (path.empty()) return root;
  const auto found = made.find(path);
  if (found != made.end()) return *found->second;
  const std::size_t dot = path.rfind('.');
  const std::string before = dot == std::string::npos ? "" : path.substr(0, dot);
  const std::string own = dot == std::string::npos ? path : path.substr(dot + 1);
  torch::nn::Module& parent = descend(root, before, made);
  return *(made[path] = parent.register_module(own, std::make_shared<torch::nn::Module>(own)));
}

// "a.b.weight" is `weight` of module "a.b".
std::pair<std::string, std::string> split_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
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

ScriptModule::ScriptModule(Script script)
    : torch::nn::Module("script"), script_(std::move(script)) {
  std::map<std::string, std::shared_ptr<torch::nn::Module>> made;
  for (const auto& each : script_.module.named_parameters()) {
    const auto [module, name] = split_name(each.name);
    // A frozen one is a value that is kept and written, as a buffer is.
    if (each.value.requires_grad()) {
      descend(*this, module, made).register_parameter(name, each.value);
    } else {
      descend(*this, module, made).register_buffer(name, each.value);
    }
  }
  for (const auto& each : script_.module.named_buffers()) {
    const auto [module, name] = split_name(each.name);
    descend(*this, module, made).register_buffer(name, each.value);
  }
  if (!script_.evaluation) return;
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

Tensors ScriptModule::forward(const Tensors& inputs) {
  const bool evaluates = script_.evaluation && !is_training();
  if (evaluates) share_with_evaluation();
  const torch::jit::GraphOptimizerEnabledGuard plainly(false);
  Tensors outputs;
  try {
    const std::vector<c10::IValue> arguments(inputs.begin(), inputs.end());
    take_tensors((evaluates ? *script_.evaluation : script_.module).forward(arguments), outputs);
  } catch (const std::exception& error) {
    std::ostringstream given;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      given << (i == 0 ? "it was given " : ", ") << c10::toString(inputs[i].scalar_type()) << " "
            << inputs[i].sizes();
    }
    throw UsageError(shown_path(script_.path) + ": forward() throws: " + last_line_of(error),
                     given.str());
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
