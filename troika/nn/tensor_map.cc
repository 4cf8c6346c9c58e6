#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/nn/tensor_map.h>

#include <algorithm>
#include <utility>

namespace troika {

TensorMap::TensorMap(std::initializer_list<NamedTensor> tensors) {
  tensors_.reserve(tensors.size());
  for (const NamedTensor& each : tensors) add(each.name, each.tensor);
}

void TensorMap::add(std::string name, at::Tensor tensor) {
  if (find(name) != nullptr) throw UsageError("two tensors are called " + quote(name, 200));
  tensors_.push_back({std::move(name), std::move(tensor)});
}

void TensorMap::set(std::string_view name, at::Tensor tensor) {
  const auto found = std::ranges::find(tensors_, name, &NamedTensor::name);
  if (found == tensors_.end()) {
    tensors_.push_back({std::string(name), std::move(tensor)});
  } else {
    found->tensor = std::move(tensor);
  }
}

const at::Tensor& TensorMap::at(std::string_view name) const {
  if (const at::Tensor* found = find(name)) return *found;
  std::vector<std::string> known;
  for (const NamedTensor& each : tensors_) known.push_back(quote(each.name, 200));
  throw UsageError("no tensor is called " + quote(name, 200),
                   known.empty() ? "there are none" : "there are " + join(known, ", "));
}

const at::Tensor* TensorMap::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &NamedTensor::name);
  return found == tensors_.end() ? nullptr : &found->tensor;
}

}  // namespace troika
