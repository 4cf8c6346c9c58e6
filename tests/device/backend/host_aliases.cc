#include "device/backend/host_aliases.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

#include "device/backend/memory.h"

namespace troika::test {

at::Tensor like_over(const c10::Storage& storage, const at::Tensor& other, c10::DispatchKey key) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), other.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(other.sizes(), other.strides(),
                                                      other.storage_offset());
  tensor._set_conj(other.is_conj());
  tensor._set_neg(other.is_neg());
  return tensor;
}

c10::Storage new_device_storage(std::size_t bytes, c10::Device device) {
  const c10::DeviceGuard guard(device);
  DeviceMemory& memory = DeviceMemory::instance();
  return {c10::Storage::use_byte_size_t(), bytes, memory.allocate(bytes), &memory,
          /*resizable=*/true};
}

at::Tensor HostAliases::of(const at::Tensor& device_tensor) {
  const c10::Storage& own = device_tensor.storage();
  auto found = host_storages_.find(own.unsafeGetStorageImpl());
  if (found == host_storages_.end()) {
    // The CPU's allocator is for kernels that enlarge an output: publish_shapes() notices.
    const c10::Storage host(c10::Storage::use_byte_size_t(), own.nbytes(),
                            c10::DataPtr(storage_of(own.data()), c10::Device(c10::kCPU)),
                            c10::GetAllocator(c10::kCPU), /*resizable=*/true);
    found = host_storages_.emplace(own.unsafeGetStorageImpl(), host).first;
    device_storages_.emplace(host.unsafeGetStorageImpl(), own);
  }
  at::Tensor host = like_over(found->second, device_tensor, c10::DispatchKey::CPU);
  arguments_.push_back({device_tensor, host, found->second.data()});
  return host;
}

c10::Storage HostAliases::storage_on_device(const c10::Storage& host) {
  auto found = device_storages_.find(host.unsafeGetStorageImpl());
  if (found == device_storages_.end()) {
    const c10::Storage storage = new_device_storage(host.nbytes(), device_);
    if (host.nbytes() > 0) {
      std::memcpy(storage_of(storage.data()), host.data(), host.nbytes());
    }
    found = device_storages_.emplace(host.unsafeGetStorageImpl(), storage).first;
    fresh_.insert(storage.unsafeGetStorageImpl());
  }
  return found->second;
}

at::Tensor HostAliases::result(const at::Tensor& host_tensor) {
  if (!host_tensor.defined()) {
    return host_tensor;
  }
  for (const Argument& argument : arguments_) {
    if (argument.host.is_same(host_tensor)) {
      return argument.device;
    }
  }
  return like_over(storage_on_device(host_tensor.storage()), host_tensor, c10::DispatchKey::HPU);
}

void HostAliases::publish_shapes() {
  for (const Argument& argument : arguments_) {
    const c10::Storage& host = argument.host.storage();
    if (host.data() != argument.data) {
      const c10::Storage fresh = new_device_storage(host.nbytes(), argument.device.device());
      std::memcpy(storage_of(fresh.data()), host.data(), host.nbytes());
      c10::StorageImpl* const own = argument.device.storage().unsafeGetStorageImpl();
      own->set_data_ptr_noswap(
          std::move(fresh.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
      own->set_nbytes(host.nbytes());
      fresh_.insert(own);
    }
    if (argument.host.sizes() != argument.device.sizes() ||
        argument.host.strides() != argument.device.strides()) {
      argument.device.unsafeGetTensorImpl()->set_sizes_and_strides(
          argument.host.sizes(), argument.host.strides(), argument.host.storage_offset());
    }
  }
}

}  // namespace troika::test
