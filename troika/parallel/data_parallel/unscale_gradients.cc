#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <troika/parallel/data_parallel/unscale_gradients.h>

#include <algorithm>
#include <vector>

namespace troika::detail {
namespace {

// LibTorch's kernel takes gradients of one device and dtype.
std::vector<std::vector<at::Tensor>> group_gradients(std::span<const at::Tensor> gradients) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const at::Tensor& each : gradients) {
    const auto same = [&](const auto& group) {
      return group.front().device() == each.device() &&
             group.front().scalar_type() == each.scalar_type();
    };
    const auto found = std::ranges::find_if(groups, same);
    (found == groups.end() ? groups.emplace_back() : *found).push_back(each);
  }
  return groups;
}

bool has_kernel(at::Device device) {
  static const c10::OperatorHandle kOperator = c10::Dispatcher::singleton().findSchemaOrThrow(
      "aten::_amp_foreach_non_finite_check_and_unscale_", "");
  return kOperator.hasKernelForDispatchKey(
      c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

// The inverse is rounded once: exact for powers of two.
float inverse_of(double scale) {
  return static_cast<float>(1 / scale);
}

at::TensorOptions number_on(at::Device device) {
  return at::TensorOptions(at::kFloat).device(device);
}

at::Tensor unscale_at_once(std::span<const at::Tensor> gradients, double scale) {
  const auto options = number_on(gradients.front().device());
  at::Tensor found = at::zeros({}, options);
  at::_amp_foreach_non_finite_check_and_unscale_(at::TensorList(gradients.data(), gradients.size()),
                                                 found, at::full({}, inverse_of(scale), options));
  return found;
}

}  // namespace

at::Tensor unscale_one_by_one(std::span<const at::Tensor> gradients, double scale) {
  const at::NoGradGuard no_grad;
  at::Tensor found = at::zeros({}, number_on(gradients.front().device()));
  for (const at::Tensor& gradient : gradients) {
    found = at::maximum(found, at::isfinite(gradient).all().logical_not().to(at::kFloat));
    gradient.mul_(inverse_of(scale));
  }
  return found;
}

at::Tensor unscale_gradients(std::span<const at::Tensor> gradients, double scale) {
  const at::NoGradGuard no_grad;
  const at::Device device = gradients.empty() ? at::kCPU : gradients.front().device();
  at::Tensor found = at::zeros({}, number_on(device));
  for (const auto& group : group_gradients(gradients)) {
    const at::Tensor here = has_kernel(group.front().device()) ? unscale_at_once(group, scale)
                                                               : unscale_one_by_one(group, scale);
    found = at::maximum(found, here.to(device, /*non_blocking=*/true));
  }
  return found;
}

}  // namespace troika::detail
