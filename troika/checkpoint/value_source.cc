#include <ATen/ATen.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/tensors.h>
#include <troika/checkpoint/value_source.h>

namespace troika {

ValueSource::ValueSource(const std::filesystem::path& path) : path_(path) {
  if (!is_checkpoint(path)) {
    file_.emplace(path);
    for (const TensorEntry& entry : file_->entries()) {
      tensors_[entry.name] = {entry.type, entry.shape};
    }
    return;
  }
  checkpoint_.emplace(path);
  for (const auto& [name, tensor] : checkpoint_->manifest().tensors) {
    if (name.starts_with("optimizer.") || name.starts_with("replica.")) continue;
    tensors_[name] = tensor;
  }
}

void ValueSource::read(const std::string& name, const StateTensor& place) {
  if (file_) {
    read_whole(file_->at(name), place);
    return;
  }
  StateDict places;
  places.add(name, place.shard, place.tensor);
  checkpoint_->read(places);
}

void ValueSource::read_whole(const TensorEntry& entry, const StateTensor& place) const {
  const at::Tensor whole = load_tensor(*file_, entry);
  const at::Tensor here =
      place.tensor.is_cpu() ? place.tensor : at::empty(place.tensor.sizes(), whole.scalar_type());
  copy_from_whole(place.shard, whole, here);
  at::Tensor target = place.tensor;
  if (!target.is_cpu()) target.copy_(here);
}

void ValueSource::verify(std::size_t first, std::size_t every) {
  if (checkpoint_) checkpoint_->verify(first, every);
}

}  // namespace troika
