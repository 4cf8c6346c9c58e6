// Internal: from tensors to what the kernels take.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <troika/ops/cuda/launch.h>
#include <troika/ops/rows.h>

namespace troika::ops::cuda {

[[nodiscard]] inline Scalar scalar_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return Scalar::kDouble;
    case at::kFloat:
      return Scalar::kFloat;
    case at::kHalf:
      return Scalar::kHalf;
    case at::kBFloat16:
      return Scalar::kBFloat16;
    default:
      TORCH_CHECK(false, "kernels take floating-point elements, not ", tensor.scalar_type());
  }
}

// Throws unless `tensor` has the type in which kernels compute for elements of `scalar`.
inline void check_wide(const at::Tensor& tensor, Scalar scalar) {
  const at::ScalarType wide = scalar == Scalar::kDouble ? at::kDouble : at::kFloat;
  TORCH_CHECK(tensor.scalar_type() == wide, "kernels take ", wide, " here, not ",
              tensor.scalar_type());
}

// Queues a kernel on the current stream of the tensor's device.
template <class Call>
void launch_on(const at::Tensor& tensor, const Call& call) {
  const c10::DeviceGuard guard(tensor.device());
  const auto stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStream(tensor.device());
  launch(call, scalar_of(tensor), static_cast<cudaStream_t>(stream.native_handle()));
  const cudaError_t code = cudaGetLastError();
  TORCH_CHECK(code == cudaSuccess, "CUDA error: ", cudaGetErrorString(code), " (a kernel starts)");
}

}  // namespace troika::ops::cuda
