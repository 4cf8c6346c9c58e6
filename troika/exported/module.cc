#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/exported/module.h>
#include <troika/exported/program.h>
#include <troika/nn/module_tree.h>

#include <map>
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
  for (const ProgramInput& one : program.inputs) {
    if (one.kind != Kind::kParameter || one.stored.offset == one.stored.end()) continue;
    for (const ProgramInput& other : program.inputs) {
      if (other.stored.record != one.stored.record || is_same_place(one.stored, other.stored))
        continue;
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

}  // namespace

ExportedModule::ExportedModule(const std::filesystem::path& path)
    : torch::nn::Module("exported"), path_(path) {
  const ExportArchive archive(path);
  program_ = std::make_shared<const Program>(read_program(archive));
  takes_ = program_->given();
  gives_ = program_->results();
  ModuleTree tree(*this);
  std::map<StoredTensor, at::Tensor> read;  // weights that are tied are one tensor
  refuse_overlaps(*program_, shown_path(path));
  values_.resize(program_->inputs.size());
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const ProgramInput& input = program_->inputs[i];
    if (input.kind == Kind::kGiven || input.kind == Kind::kLiteral) continue;
    StoredTensor place = input.stored;
    place.requires_grad = false;
    at::Tensor& value = read[place];
    const bool is_first = !value.defined();
    if (is_first) value = archive.tensor(input.stored);
    values_[i] = value;
    if (!is_first || input.kind == Kind::kConstant) continue;
    if (input.kind == Kind::kParameter && input.stored.requires_grad) {
      tree.add_parameter(input.name, value.requires_grad_(true));
    } else if (input.kind == Kind::kParameter || is_kept(input)) {
      tree.add_buffer(input.name, value);
    }
  }
}

// A value that is not registered follows the parameters to their device and type.
at::Tensor ExportedModule::constant(std::size_t input, const GraphMode& mode) {
  at::Tensor& value = values_[input];
  const bool widens = mode.in_double && value.scalar_type() == at::kFloat;
  if (value.device() != mode.device || widens) {
    value = value.to(mode.device, widens ? at::kDouble : value.scalar_type());
  }
  return value;
}

Tensors ExportedModule::forward(const Tensors& inputs) {
  if (inputs.size() != takes_.size()) {
    throw UsageError(shown_path(path_) + " takes " + plural(std::ssize(takes_), "tensor") +
                     ", not " + std::to_string(inputs.size()));
  }
  GraphMode mode;
  mode.trains = is_training();
  mode.file = shown_path(path_);
  if (!inputs.empty()) mode.device = inputs[0].device();
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!is_floating(program_->inputs[i])) continue;
    const bool was_single = program_->inputs[i].stored.type == at::kFloat;
    mode.in_double = mode.in_double || (was_single && values_[i].scalar_type() == at::kDouble);
    mode.device = values_[i].device();
  }
  std::vector<c10::IValue> values;
  std::size_t given = 0;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const ProgramInput& input = program_->inputs[i];
    if (input.kind == Kind::kGiven) {
      values.emplace_back(inputs[given++]);
      continue;
    }
    if (input.kind == Kind::kLiteral) {
      values.emplace_back(input.literal);
      continue;
    }
    const bool is_registered =
        input.kind == Kind::kParameter || (input.kind == Kind::kBuffer && is_kept(input));
    at::Tensor value = is_registered ? values_[i] : constant(i, mode);
    // An evaluation leaves no trace, although the program was exported in train mode.
    if (input.is_written && !mode.trains) value = value.clone();
    values.emplace_back(std::move(value));
  }
  const std::vector<c10::IValue> returned = run_graph(*program_->graph, std::move(values), mode);
  Tensors results;
  for (std::size_t i = 0; i < returned.size(); ++i) {
    const Program::Output& output = program_->outputs[i];
    if (output.result) results.push_back(tensor_of(returned[i], mode.file));
    if (!output.buffer || !mode.trains) continue;
    const at::NoGradGuard no_grad;
    values_[*output.buffer].copy_(tensor_of(returned[i], mode.file));
  }
  return results;
}

std::shared_ptr<ExportedModule> load_exported(const std::filesystem::path& path) {
  return std::make_shared<ExportedModule>(path);
}

}  // namespace troika
