#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/exported/module.h>
#include <troika/exported/program.h>
#include <troika/exported/recomputation.h>
#include <troika/nn/lora.h>
#include <troika/nn/module_tree.h>
#include <troika/param/arena.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace troika {
namespace {

using Kind = ProgramInput::Kind;

bool is_same_place(const StoredTensor& one, const StoredTensor& other) {
  return one.type == other.type && one.sizes == other.sizes && one.strides == other.strides &&
         one.offset == other.offset;
}

// A record is a storage: two parameters in one have to be the same, or apart.
void refuse_overlaps(const Program& program, const std::string& file) {
  std::map<std::string, std::vector<const ProgramInput*>> in_record;
  for (const ProgramInput& each : program.inputs) in_record[each.stored.record].push_back(&each);
  for (const ProgramInput& one : program.inputs) {
    if (one.kind != Kind::kParameter || one.stored.offset == one.stored.end()) continue;
    for (const ProgramInput* each : in_record[one.stored.record]) {
      const ProgramInput& other = *each;
      if (is_same_place(one.stored, other.stored)) continue;
      if (other.stored.end() <= one.stored.offset || one.stored.end() <= other.stored.offset)
        continue;
      throw UsageError(file + ": parameter " + quote(one.name, 200) + " shares memory with " +
                           quote(other.name, 200) + ", which has another shape",
                       "make one of the other in forward(), as weight.t() does");
    }
  }
}

// A buffer that the program changes goes with the model, also one that Python does not save.
bool is_kept(const ProgramInput& input) {
  return input.is_persistent || input.is_written;
}

bool is_floating(const ProgramInput& input) {
  return input.kind == Kind::kParameter && at::isFloatingType(input.stored.type);
}

// Returns whether the module registers it under its name.
bool is_registered(const ProgramInput& input) {
  return input.kind == Kind::kParameter || (input.kind == Kind::kBuffer && is_kept(input));
}

// A value that is not registered follows the parameters to their device and type.
void follow(at::Tensor& value, const GraphMode& mode) {
  const bool widens = mode.in_double && value.scalar_type() == at::kFloat;
  if (value.device() == mode.device && !widens) return;
  value = value.to(mode.device, widens ? at::kDouble : value.scalar_type());
}

// Refuses two programs that do not take, or do not return, tensors of the same names, types and
// extents.
void refuse_unlike(const std::vector<ExportedTensor>& own, const std::vector<ExportedTensor>& other,
                   const std::string& file, const std::string& verb) {
  const auto described = [](const std::vector<ExportedTensor>& tensors) {
    std::vector<std::string> each;
    for (const ExportedTensor& one : tensors) {
      std::vector<std::string> sizes;
      for (const auto& size : one.sizes) sizes.push_back(size ? std::to_string(*size) : "*");
      each.push_back(quote(one.name, 200) + " of " + c10::toString(one.type) + " [" +
                     join(sizes, ", ") + "]");
    }
    return each.empty() ? std::string("nothing") : join(each, ", ");
  };
  const std::string expected = described(own), found = described(other);
  if (expected == found) return;
  throw UsageError(
      "the file for evaluations, " + file + ", " + verb + " " + found + ", and not " + expected,
      "export the same module twice, after train() and after eval()");
}

}  // namespace

ExportedModule::Loaded::Loaded(const ExportArchive& archive)
    : file(shown_path(archive.path())),
      program(std::make_shared<const Program>(read_program(archive))),
      takes(program->given()),
      gives(program->results()),
      values(program->inputs.size()) {}

ExportedModule::ExportedModule(const std::filesystem::path& path, const ExportedSettings& settings)
    : torch::nn::Module("exported"), trained_(ExportArchive(path)) {
  register_values(ExportArchive(path));
  auto program = std::make_shared<Program>(*trained_.program);
  program->graph = with_recomputation(program->graph, settings.checkpoint_modules, trained_.file);
  trained_.program = std::move(program);
  if (!settings.evaluation_path) return;
  const ExportArchive archive(*settings.evaluation_path);
  evaluated_.emplace(archive);
  refuse_unlike(trained_.takes, evaluated_->takes, evaluated_->file, "takes");
  refuse_unlike(trained_.gives, evaluated_->gives, evaluated_->file, "gives");
  share_values(archive);
}

void ExportedModule::register_values(const ExportArchive& archive) {
  ModuleTree tree(*this);
  std::map<StoredTensor, at::Tensor> read;  // weights that are tied are one tensor
  refuse_overlaps(*trained_.program, trained_.file);
  for (std::size_t i = 0; i < trained_.values.size(); ++i) {
    const ProgramInput& input = trained_.program->inputs[i];
    if (input.kind == Kind::kGiven || input.kind == Kind::kLiteral) continue;
    StoredTensor place = input.stored;
    place.requires_grad = false;
    at::Tensor& value = read[place];
    const bool is_first = !value.defined();
    if (is_first) value = archive.tensor(input.stored);
    trained_.values[i] = value;
    if (!is_first || input.kind == Kind::kConstant) continue;
    if (input.kind == Kind::kParameter && input.stored.requires_grad) {
      tree.add_parameter(input.name, value.requires_grad_(true));
    } else if (input.kind == Kind::kParameter || is_kept(input)) {
      tree.add_buffer(input.name, value);
    }
  }
}

ExportedModule::~ExportedModule() = default;

// A pair beside a weight that an embedding has, too, would change this where it is merged.
std::set<const c10::TensorImpl*> ExportedModule::shared_weights() const {
  std::set<const c10::TensorImpl*> named, shared;
  const std::set<std::size_t> others = other_operands(*trained_.program->graph);
  for (std::size_t i = 0; i < trained_.values.size(); ++i) {
    if (!trained_.values[i].defined()) continue;
    const c10::TensorImpl* const value = trained_.values[i].unsafeGetTensorImpl();
    if (!named.insert(value).second || others.contains(i)) shared.insert(value);
  }
  return shared;
}

void ExportedModule::adapt(LoraTargets& targets) {
  constexpr std::string_view kEnd = ".weight";
  ModuleTree tree(*this);
  const std::set<const c10::TensorImpl*> shared = shared_weights();
  if (pairs_ == nullptr) pairs_ = std::make_unique<ProgramPairs>();
  for (const std::size_t i : linear_weights(*trained_.program->graph)) {
    const ProgramInput& input = trained_.program->inputs[i];
    const at::Tensor& weight = trained_.values[i];
    const bool is_layer = input.kind == Kind::kParameter && input.name.ends_with(kEnd) &&
                          weight.dim() == 2 && !pairs_->contains(weight.unsafeGetTensorImpl());
    if (!is_layer) continue;
    const std::string layer = input.name.substr(0, input.name.size() - kEnd.size());
    if (shared.contains(weight.unsafeGetTensorImpl())) {
      refuse_shared_weight(targets.options(), layer);
      continue;
    }
    if (!targets.take(layer)) continue;
    const LoraOptions& lora = targets.options();
    const auto made = [&](const ParameterSpec& spec) {
      const at::Tensor value = initial_values(spec, targets.seed()).to(weight.options());
      tree.add_parameter(spec.name, value.requires_grad_(true));
      return value;
    };
    pairs_->emplace(weight.unsafeGetTensorImpl(),
                    ProgramPair{made(lora_a_spec(layer, lora.rank, weight.size(1))),
                                made(lora_b_spec(layer, weight.size(0), lora.rank)), lora.scale(),
                                lora.dropout});
  }
}

// Gives the program of evaluations the tensors of the one that is trained, by their names.
void ExportedModule::share_values(const ExportArchive& archive) {
  std::map<std::string, at::Tensor> own;
  for (std::size_t i = 0; i < trained_.values.size(); ++i) {
    const ProgramInput& input = trained_.program->inputs[i];
    if (is_registered(input)) own.emplace(input.name, trained_.values[i]);
  }
  for (std::size_t i = 0; i < evaluated_->values.size(); ++i) {
    const ProgramInput& input = evaluated_->program->inputs[i];
    if (input.kind == Kind::kGiven || input.kind == Kind::kLiteral) continue;
    const auto found = own.find(input.name);
    const bool is_same = found != own.end() && found->second.sizes() == input.stored.sizes &&
                         found->second.scalar_type() == input.stored.type;
    if (is_same) {
      evaluated_->values[i] = found->second;
    } else if (is_registered(input)) {
      throw UsageError("the file for evaluations, " + evaluated_->file + ", has " +
                           quote(input.name, 200) + ", which " + trained_.file +
                           (found == own.end() ? " has not" : " has in another shape or type"),
                       "export the same module twice, after train() and after eval()");
    } else {
      evaluated_->values[i] = archive.tensor(input.stored);
    }
  }
}

Tensors ExportedModule::forward(const Tensors& inputs) {
  const bool evaluates = evaluated_ && !is_training();
  return run(evaluates ? *evaluated_ : trained_, inputs);
}

Tensors ExportedModule::run(Loaded& loaded, const Tensors& inputs) {
  if (inputs.size() != loaded.takes.size()) {
    throw UsageError(loaded.file + " takes " + plural(std::ssize(loaded.takes), "tensor") +
                     ", not " + std::to_string(inputs.size()));
  }
  GraphMode mode;
  mode.trains = is_training();
  mode.file = loaded.file;
  mode.pairs = pairs_.get();
  mode.draws = current_sample_draws();
  if (!inputs.empty()) mode.device = inputs[0].device();
  const std::vector<ProgramInput>& slots = loaded.program->inputs;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!is_floating(slots[i])) continue;
    const bool was_single = slots[i].stored.type == at::kFloat;
    mode.in_double =
        mode.in_double || (was_single && loaded.values[i].scalar_type() == at::kDouble);
    mode.device = loaded.values[i].device();
  }
  std::vector<c10::IValue> values;
  std::size_t given = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const ProgramInput& input = slots[i];
    if (input.kind == Kind::kGiven) {
      values.emplace_back(inputs[given++]);
      continue;
    }
    if (input.kind == Kind::kLiteral) {
      values.emplace_back(input.literal);
      continue;
    }
    if (!is_registered(input)) follow(loaded.values[i], mode);
    // An evaluation leaves no trace, although the program was exported in train mode.
    const bool is_copied = input.is_written && !mode.trains;
    values.emplace_back(is_copied ? loaded.values[i].clone() : loaded.values[i]);
  }
  const std::vector<c10::IValue> returned =
      run_graph(*loaded.program->graph, std::move(values), mode);
  Tensors results;
  for (std::size_t i = 0; i < returned.size(); ++i) {
    const Program::Output& output = loaded.program->outputs[i];
    if (output.result) results.push_back(tensor_of(returned[i], mode.file));
    if (!output.buffer || !mode.trains) continue;
    const at::NoGradGuard no_grad;
    loaded.values[*output.buffer].copy_(tensor_of(returned[i], mode.file));
  }
  if (mode.trains) refuse_without_gradients(results);
  return results;
}

// What torch.utils.checkpoint runs with use_reentrant = true is exported under no_grad().
void ExportedModule::refuse_without_gradients(const Tensors& results) const {
  if (!at::GradMode::is_enabled()) return;
  const auto is_trained = [](const at::Tensor& each) { return each.requires_grad(); };
  if (std::ranges::any_of(results, is_trained)) return;
  const std::vector<at::Tensor> own = parameters();
  if (std::ranges::none_of(own, is_trained)) return;
  throw UsageError(
      trained_.file + ": no result depends on a parameter that is trained",
      "the program computes under no_grad(), as torch.utils.checkpoint with use_reentrant=True "
      "leaves it: export without, and name the modules as model.checkpoint_modules");
}

std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& path,
                                              const ExportedSettings& settings) {
  return std::make_shared<ExportedModule>(path, settings);
}

}  // namespace troika
