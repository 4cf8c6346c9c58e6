#include <troika/base/text.h>
#include <troika/nn/module_tensors.h>

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <unordered_set>
#include <utility>

namespace troika::detail {
namespace {

std::vector<NamedTensor> each_once(const torch::OrderedDict<std::string, at::Tensor>& named) {
  std::vector<NamedTensor> tensors;
  std::unordered_set<const void*> known;
  for (const auto& item : named) {
    if (item.value().defined() && known.insert(item.value().unsafeGetTensorImpl()).second) {
      tensors.push_back({item.key(), item.value()});
    }
  }
  return tensors;
}

}  // namespace

std::vector<NamedTensor> parameters_of(const torch::nn::Module& module) {
  return each_once(module.named_parameters());
}

std::vector<NamedTensor> buffers_of(const torch::nn::Module& module) {
  return each_once(module.named_buffers());
}

std::vector<NamedTensor> trained_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> trained = parameters_of(module);
  std::erase_if(trained, [](const NamedTensor& each) { return !each.tensor.requires_grad(); });
  return trained;
}

bool shares_elements(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.numel() < 2) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride and size
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1) dims.emplace_back(tensor.stride(dim), tensor.size(dim));
  }
  std::ranges::sort(dims);
  std::int64_t reach = 0;  // the farthest element of the dims before
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

std::string validate_parameter(const std::string& name, const at::Tensor& tensor,
                               at::ScalarType type) {
  const std::string title = "parameter " + quote(name, 200);
  if (!tensor.is_cpu()) return title + " is on " + tensor.device().str() + ", not the host's";
  if (tensor.layout() != at::kStrided) return title + " is not a dense tensor";
  if (shares_elements(tensor)) {
    return title + " has elements that share memory, as expand() makes them";
  }
  if (tensor.scalar_type() == type) return {};
  return title + " is of dtype " + c10::toString(tensor.scalar_type()) + ", in a model of " +
         c10::toString(type);
}

std::span<const std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

at::Tensor tensor_on(const at::Tensor& memory, std::int64_t byte, at::IntArrayRef sizes,
                     at::IntArrayRef strides, at::ScalarType dtype) {
  return at::for_blob(static_cast<std::byte*>(memory.data_ptr()) + byte, sizes)
      .strides(strides)
      .deleter([memory](void*) { (void)memory; })
      .options(memory.options().dtype(dtype))
      .target_device(memory.device())
      .make_tensor();
}

at::Tensor leaf_on(const at::Tensor& tensor) {
  return tensor_on(tensor, 0, tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

std::vector<at::Tensor> copies_of_buffers(const torch::nn::Module& module) {
  std::vector<at::Tensor> copies;
  for (const NamedTensor& each : buffers_of(module)) copies.push_back(each.tensor.clone());
  return copies;
}

void set_buffers(const torch::nn::Module& module, const std::vector<at::Tensor>& copies) {
  const at::NoGradGuard no_grad;
  const std::vector<NamedTensor> buffers = buffers_of(module);
  for (std::size_t i = 0; i < copies.size(); ++i) buffers[i].tensor.copy_(copies[i]);
}

std::int64_t changes_of_buffers(const torch::nn::Module& module) {
  std::int64_t changes = 0;
  for (const NamedTensor& each : buffers_of(module)) {
    changes += static_cast<std::int64_t>(each.tensor._version());
  }
  return changes;
}

void widen(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> all = parameters_of(module);
  for (NamedTensor& each : buffers_of(module)) all.push_back(std::move(each));
  for (const NamedTensor& each : all) {
    if (each.tensor.is_floating_point()) each.tensor.set_data(each.tensor.to(at::kDouble));
  }
}

}  // namespace troika::detail
