#include <torch/torch.h>
#include <troika/checkpoint/model_parts.h>
#include <troika/nn/module_tensors.h>

#include <algorithm>
#include <utility>

namespace troika::detail {

void add_part(StateDict& state, const Part& part) {
  state.add(part.name, part.shard, part.tensor.detach().contiguous().view({-1}));
}

void PartReader::add(const Part& part) {
  const at::Tensor tensor = part.tensor.detach();
  if (tensor.is_contiguous()) {
    places_.add(part.name, part.shard, tensor.view({-1}));
    return;
  }
  const at::Tensor place = at::empty(tensor.sizes(), tensor.options());
  copies_.emplace_back(place, tensor);
  places_.add(part.name, part.shard, place.view({-1}));
}

void PartReader::done() {
  for (auto& [place, tensor] : copies_) tensor.copy_(place);
}

ModelParts::ModelParts(Replica& model, std::string prefix)
    : prefix_(std::move(prefix)),
      replica_(&model),
      data_(model.session()),
      dealt_(static_cast<std::size_t>(data_.size()), 0) {
  const bool is_cut = model.zero_stage() > 0;
  for (const NamedTensor& each : parameters_of(*model.base_module())) {
    Part part{prefix_ + each.name, ShardDescriptor::whole(each.tensor.sizes(), false), each.tensor};
    read_.push_back(part);
    if (!is_cut || !each.tensor.requires_grad()) add_dealt(std::move(part));
  }
  if (is_cut) {
    for (const ParameterShard& shard : model.named_shards()) add_own(part_of(shard));
  }
  for (const NamedTensor& each : buffers_of(*model.base_module())) buffers_.push_back(each);
}

ModelParts::ModelParts(ModulePipeline& model, std::string prefix)
    : prefix_(std::move(prefix)),
      data_(Session::on(model.groups().data, model.timeout())),
      dealt_(static_cast<std::size_t>(data_.size()), 0) {
  for (const ParameterShard& shard : model.shards()) {
    read_.push_back(part_of(shard));
    model.zero_stage() > 0 ? add_own(part_of(shard)) : add_dealt(part_of(shard));
  }
  const std::vector<std::string> names = model.unit_names();
  const auto modules = model.modules();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto named = [&](const NamedTensor& each) { return names[i] + "." + each.name; };
    for (const NamedTensor& each : parameters_of(*modules[i])) {
      if (each.tensor.requires_grad()) continue;  // it is among the shards
      read_.push_back(
          {prefix_ + named(each), ShardDescriptor::whole(each.tensor.sizes(), false), each.tensor});
      add_dealt(read_.back());
    }
    for (const NamedTensor& each : buffers_of(*modules[i])) {
      buffers_.push_back({named(each), each.tensor});
    }
  }
}

Part ModelParts::part_of(const ParameterShard& shard) const {
  Part part{prefix_ + shard.name, ShardDescriptor::whole(shard.shape, false), shard.tensor};
  part.shard.begin = shard.begin;
  part.shard.count = shard.tensor.numel();
  return part;
}

void ModelParts::add_own(Part part) {
  part.shard.owned = part.shard.count;
  by_tensor_.emplace(part.tensor.unsafeGetTensorImpl(), written_.size());
  written_.push_back(std::move(part));
}

// In the order of their names, which all data ranks share: to the rank that has the fewest bytes.
void ModelParts::add_dealt(Part part) {
  const auto least = std::ranges::min_element(dealt_);
  *least += static_cast<std::int64_t>(part.tensor.nbytes());
  part.shard.owned = least - dealt_.begin() == data_.rank() ? part.shard.count : 0;
  by_tensor_.emplace(part.tensor.unsafeGetTensorImpl(), written_.size());
  written_.push_back(std::move(part));
}

const Part* ModelParts::find(const at::Tensor& tensor) const {
  const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
  return found == by_tensor_.end() ? nullptr : &written_[found->second];
}

std::string ModelParts::replica_name(int data_rank, const std::string& buffer) const {
  return "replica." + std::to_string(data_rank) + "." + prefix_ + buffer;
}

void ModelParts::save(StateDict& state) const {
  for (const Part& part : written_) add_part(state, part);
  for (const NamedTensor& buffer : buffers_) {
    const bool is_averaged = data_.size() > 1 && buffer.tensor.is_floating_point();
    const at::Tensor mean =
        is_averaged ? data_.average(buffer.tensor, "running statistics") : buffer.tensor;
    const ShardDescriptor own = ShardDescriptor::whole(buffer.tensor.sizes(), true);
    add_part(state, {prefix_ + buffer.name, ShardDescriptor::whole(mean.sizes(), data_.rank() == 0),
                     mean});
    if (data_.size() > 1) {
      add_part(state, {replica_name(data_.rank(), buffer.name), own, buffer.tensor});
    }
  }
}

void ModelParts::add_places(PartReader& places, const StateReader& reader) const {
  for (const Part& part : read_) places.add(part);
  for (const NamedTensor& buffer : buffers_) {
    const bool is_own = reader.has(replica_name(data_.size() - 1, buffer.name)) &&
                        !reader.has(replica_name(data_.size(), buffer.name));
    places.add({is_own ? replica_name(data_.rank(), buffer.name) : prefix_ + buffer.name,
                ShardDescriptor::whole(buffer.tensor.sizes(), false), buffer.tensor});
  }
}

void ModelParts::read_done() const {
  if (replica_ != nullptr) replica_->values_written();
}

}  // namespace troika::detail
