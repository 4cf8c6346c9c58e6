// Internal. The tensors of a torch::nn::Module as the ranks see them: each once, under the first of
// its names.
#pragma once

#include <troika/param/named_tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace torch::nn {
class Module;
}

namespace troika::detail {

// All parameters, and all buffers, in the module's order.
[[nodiscard]] std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);
[[nodiscard]] std::vector<NamedTensor> buffers_of(const torch::nn::Module& module);
// The parameters that require a gradient.
[[nodiscard]] std::vector<NamedTensor> trained_of(const torch::nn::Module& module);

// The bytes of a tensor that is contiguous.
[[nodiscard]] std::span<const std::byte> bytes_of(const at::Tensor& contiguous);

// A tensor of its own on `memory`, from a byte on, which it keeps alive. Not a view to autograd:
// views share a version counter, and refuse detach_(), which zero_grad() calls.
[[nodiscard]] at::Tensor tensor_on(const at::Tensor& memory, std::int64_t byte,
                                   at::IntArrayRef sizes, at::IntArrayRef strides,
                                   at::ScalarType dtype);
// The same on all of `tensor`.
[[nodiscard]] at::Tensor leaf_on(const at::Tensor& tensor);

}  // namespace troika::detail
