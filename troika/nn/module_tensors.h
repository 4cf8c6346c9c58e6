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

// Return all parameters, and all buffers, in the module's order.
[[nodiscard]] std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);
[[nodiscard]] std::vector<NamedTensor> buffers_of(const torch::nn::Module& module);
// Returns the parameters that require a gradient.
[[nodiscard]] std::vector<NamedTensor> trained_of(const torch::nn::Module& module);

// Returns copies of the buffers, and writes such copies back.
[[nodiscard]] std::vector<at::Tensor> copies_of_buffers(const torch::nn::Module& module);
void set_buffers(const torch::nn::Module& module, const std::vector<at::Tensor>& copies);
// Counts the writes to buffers so far.
[[nodiscard]] std::int64_t changes_of_buffers(const torch::nn::Module& module);
// Makes parameters and buffers of floating-point numbers fp64. Module::to(at::kDouble) makes
// floating-point numbers of counts as well.
void widen(const torch::nn::Module& module);

// Returns whether elements of a dense tensor share memory, as those that expand() makes do.
[[nodiscard]] bool shares_elements(const at::Tensor& tensor);

// Returns why a tensor cannot be a parameter of a unit in a model of this type, or an empty string.
[[nodiscard]] std::string validate_parameter(const std::string& name, const at::Tensor& tensor,
                                             at::ScalarType type);

// Returns the bytes of a contiguous tensor.
[[nodiscard]] std::span<const std::byte> bytes_of(const at::Tensor& contiguous);

// Returns a separate tensor on `memory`, from `byte` on, and keeps the memory alive. Autograd does
// not see a view: views share a version counter, and refuse detach_(), which zero_grad() calls.
[[nodiscard]] at::Tensor tensor_on(const at::Tensor& memory, std::int64_t byte,
                                   at::IntArrayRef sizes, at::IntArrayRef strides,
                                   at::ScalarType dtype);
// Returns a separate tensor, as tensor_on() does, on all of `tensor`.
[[nodiscard]] at::Tensor leaf_on(const at::Tensor& tensor);

}  // namespace troika::detail
