// What makes tensors, gives them other shapes and other memory: nothing that computes.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "device/backend/host_aliases.h"
#include "device/backend/launch.h"
#include "device/backend/memory.h"
#include "device/backend/timeline.h"

namespace troika::test {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::HPU);

c10::Device given_or_current(std::optional<c10::Device> device) {
  return device.has_value() && device->has_index() ? *device : test_device(current_device());
}

void check_layout(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided,
              "the test device has strided tensors only");
  TORCH_CHECK(!pin_memory.value_or(false), "only host memory can be pinned");
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_layout(layout, pin_memory);
  const c10::DeviceGuard guard(given_or_current(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &DeviceMemory::instance(), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_layout(layout, pin_memory);
  const c10::DeviceGuard guard(given_or_current(device));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), &DeviceMemory::instance(),
      kKeys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes,
                      c10::SymIntArrayRef strides, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset.has_value() ? std::optional(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         c10::SymIntArrayRef strides) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                    C10_AS_INTARRAYREF_SLOW(strides));
}

// Enlarges the memory of a tensor and keeps the values that are there.
void grow(const at::Tensor& tensor, std::size_t bytes) {
  c10::StorageImpl* const own = tensor.storage().unsafeGetStorageImpl();
  const std::size_t kept = own->nbytes();
  if (bytes <= kept) {
    return;
  }
  TORCH_CHECK(own->resizable(), "the memory of this tensor cannot be enlarged");
  const c10::Storage fresh = new_device_storage(bytes, tensor.device());
  if (kept > 0) {
    const auto over = [](const c10::Storage& storage, std::size_t size) {
      const auto all = static_cast<std::int64_t>(size);
      return like_over(storage, at::empty({all}, at::kByte), c10::DispatchKey::HPU);
    };
    over(fresh, kept).copy_(over(tensor.storage(), kept));
  }
  own->set_data_ptr_noswap(std::move(fresh.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  own->set_nbytes(bytes);
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         std::optional<c10::MemoryFormat> format) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  const auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  if (shape != self.sizes()) {
    impl->set_sizes_contiguous(shape);
    const auto offset = static_cast<std::size_t>(self.storage_offset());
    grow(self, at::detail::computeStorageNbytesContiguous(shape, self.itemsize(), offset));
  }
  if (format.has_value()) {
    impl->empty_tensor_restride(*format);
  }
  return self;  // NOLINT(bugprone-return-const-ref-from-parameter): LibTorch's signature
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage source, c10::SymInt offset,
                        c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  const auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  TORCH_CHECK(source.device() == self.device(), "a tensor on ", self.device(),
              " cannot take memory of ", source.device());
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.expect_int());
  if (strides.empty()) {
    impl->set_sizes_contiguous(shape);
  } else {
    impl->set_sizes_and_strides(shape, C10_AS_INTARRAYREF_SLOW(strides));
  }
  grow(self, at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(),
                                              static_cast<std::size_t>(self.storage_offset())));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {c10::SymInt(elements)}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sym_sizes(),
                     source.sym_strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_whole_storage(self, new_device_storage(0, self.device()));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  DeviceMemory::instance().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("record_stream", &record_stream);
}

}  // namespace
}  // namespace troika::test
