#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/parallel/data_parallel/gradient_slot.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>

namespace troika::detail {
namespace {

std::vector<std::int64_t> strides_of_gradient(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), at::TensorOptions(at::kMeta)).strides().vec();
}

// Of the same elements in the same order of memory.
bool is_copy_of_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.layout() == at::kStrided && a.is_cpu() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

ValidationError validate_trained(const NamedTensor& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  const std::string name = "parameter " + quote(parameter.name, 200);
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype != at::kDouble && dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    return {name + " is of dtype " + c10::toString(dtype) + ", whose gradients cannot be averaged",
            "DataParallel averages gradients in fp64, fp32, bf16 and fp16"};
  }
  if (torch::autograd::impl::post_acc_grad_hooks(tensor)) {
    return {
        name + " is in another DataParallel already",
        "keep one DataParallel of a module, or call unwrap() of it before the next one is made"};
  }
  return {};
}

std::vector<GradientSlot> make_slots(std::span<const NamedTensor> parameters) {
  std::vector<GradientSlot> slots;
  for (const NamedTensor& each : parameters) {
    if (!each.tensor.requires_grad()) continue;
    slots.push_back({.name = each.name,
                     .parameter = each.tensor,
                     .dtype = each.tensor.scalar_type(),
                     .device = each.tensor.device(),
                     .sizes = each.tensor.sizes().vec(),
                     .strides = strides_of_gradient(each.tensor),
                     .view = {},
                     .value = {}});
  }
  return slots;
}

std::string title_of(const GradientSlot& slot) {
  return "parameter " + quote(slot.name, 200);
}

std::string title_of(std::span<const GradientSlot> slots, std::span<const std::size_t> indices) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> names;
  for (const std::size_t index : indices.subspan(0, std::min(kShown, indices.size()))) {
    names.push_back(quote(slots[index].name, 200));
  }
  std::string text = (indices.size() == 1 ? "parameter " : "parameters ") + join(names, ", ");
  if (indices.size() > kShown) {
    text += " and " + std::to_string(indices.size() - kShown) + " others";
  }
  return text;
}

void move_gradient_to_view(GradientSlot& slot) {
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (gradient.is_same(slot.view)) return;
  if (gradient.requires_grad()) {
    throw UsageError("the gradient of " + title_of(slot) + " has a graph of its own",
                     "use torch::autograd::grad() for gradients that are differentiated again");
  }
  if (is_copy_of_bytes(gradient, slot.view)) {
    std::memcpy(slot.view.data_ptr(), gradient.const_data_ptr(), slot.view.nbytes());
  } else if (gradient.layout() == at::kStrided && gradient.sizes() == slot.view.sizes()) {
    const at::NoGradGuard no_grad;
    slot.view.copy_(gradient);
  } else {
    throw UsageError("the gradient of " + title_of(slot) + " is not a dense tensor of its shape",
                     "make the embedding with sparse = false");
  }
  gradient = slot.view;
}

}  // namespace troika::detail
