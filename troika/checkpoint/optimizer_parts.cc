#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/checkpoint/optimizer_parts.h>
#include <troika/device/huge_pages.h>

#include <algorithm>
#include <utility>

namespace troika::detail {
namespace {

const Part& part_of(const at::Tensor& tensor, const std::vector<ModelParts>& models) {
  for (const ModelParts& model : models) {
    if (const Part* part = model.find(tensor)) return *part;
  }
  throw UsageError("an optimiser is given a tensor that is no parameter of the checkpoint's models",
                   "add the model before its optimiser; with ZeRO the optimiser is a "
                   "ZeroRedundancyOptimizer");
}

// A number of steps is one element, which the rank that writes the first of the parameter writes.
ShardDescriptor step_shard(const ShardDescriptor& parameter) {
  return ShardDescriptor::whole({1}, parameter.owned > 0 && parameter.begin == 0);
}

}  // namespace

OptimizerParts::OptimizerParts(torch::optim::Optimizer& optimizer, std::string prefix,
                               const std::vector<ModelParts>& models)
    : state_(optimizer), prefix_(std::move(prefix)) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      updated_.push_back({tensor, part_of(tensor, models)});
    }
  }
}

std::string OptimizerParts::name_of(std::string_view field, const Part& part) const {
  return prefix_ + std::string(field) + "." + part.name;
}

void OptimizerParts::save(StateDict& state) const {
  for (const Updated& each : updated_) {
    for (const OptimizerField& field : state_.fields(each.tensor)) {
      if (field.number != nullptr) {
        add_part(state, {name_of(field.name, each.part), step_shard(each.part.shard),
                         at::tensor(*field.number, at::kLong)});
      } else if (field.tensor->defined()) {
        add_part(state, {name_of(field.name, each.part), each.part.shard, *field.tensor});
      }
    }
  }
  const auto& groups = state_.optimizer().param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    state.set(prefix_ + "lr." + std::to_string(i), groups[i].options().get_lr());
  }
}

void OptimizerParts::check(const StateReader& reader) const {
  const std::vector<std::string_view> known = state_.field_names();
  for (const Updated& each : updated_) {
    const std::string suffix = "." + each.part.name;
    for (const auto& [name, tensor] : reader.manifest().tensors) {
      if (!name.starts_with(prefix_) || !name.ends_with(suffix)) continue;
      const std::string field =
          name.substr(prefix_.size(), name.size() - prefix_.size() - suffix.size());
      if (field.find('.') != std::string::npos || std::ranges::count(known, field) > 0) continue;
      throw DataError(shown_path(reader.path()) + " has " + quote(field) +
                          " of another optimiser than torch::optim::" + std::string(state_.name()),
                      "load it with the optimiser that it was saved with");
    }
    break;  // all are alike
  }
}

void OptimizerParts::add_places(PartReader& places, const StateReader& reader) {
  read_.clear();
  const std::vector<std::string_view> names = state_.field_names();
  for (std::size_t i = 0; i < updated_.size(); ++i) {
    const Updated& each = updated_[i];
    Read read{i, std::vector<at::Tensor>(names.size())};
    bool has_any = false;
    for (std::size_t k = 0; k < names.size(); ++k) {
      const std::string name = name_of(names[k], each.part);
      if (!reader.has(name)) continue;
      has_any = true;
      const bool is_step = names[k] == "step";
      // Every value is read: none needs to be zero before.
      read.values[k] =
          is_step ? at::empty({1}, at::kLong) : in_huge_pages(at::empty_like(each.tensor).detach());
      places.add(
          {name, is_step ? ShardDescriptor::whole({1}, false) : each.part.shard, read.values[k]});
    }
    if (has_any) read_.push_back(std::move(read));
  }
}

void OptimizerParts::read_done(const StateDict& numbers) const {
  for (const Read& read : read_) {
    const std::vector<OptimizerField> fields = state_.renew(updated_[read.updated].tensor);
    for (std::size_t k = 0; k < fields.size(); ++k) {
      const at::Tensor& value = read.values[k];
      if (!value.defined()) continue;
      if (fields[k].number != nullptr) *fields[k].number = value.item<std::int64_t>();
      if (fields[k].tensor != nullptr) *fields[k].tensor = value;
    }
  }
  auto& groups = state_.optimizer().param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string name = prefix_ + "lr." + std::to_string(i);
    if (numbers.numbers().contains(name)) groups[i].options().set_lr(numbers.number(name));
  }
}

}  // namespace troika::detail
