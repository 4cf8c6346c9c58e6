#include <torch/torch.h>
#include <troika/nn/image_rows.h>
#include <troika/nn/normalized_images.h>

#include <cstdint>
#include <optional>

namespace troika {
namespace {

at::Tensor images_like(const at::Tensor& pixels, const at::Tensor& like) {
  return detail::images_of(pixels, like.size(0), like.size(2), like.size(3));
}

class Normalized : public torch::autograd::Function<Normalized> {
 public:
  // Returns the output, the mean and the variance.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& input,
                                                const std::optional<at::Tensor>& shortcut,
                                                const at::Tensor& weight, const at::Tensor& bias,
                                                double eps, bool relu) {
    const at::Tensor added = shortcut ? detail::pixels_of(*shortcut) : at::Tensor();
    const ops::BatchNormResult found =
        ops::batch_norm(detail::pixels_of(input), added, weight, bias, eps,
                        relu ? ops::Relu::kApplied : ops::Relu::kAbsent);
    const at::Tensor output = images_like(found.output, input);
    context->save_for_backward({input, output, weight, found.mean, found.variance});
    context->saved_data["eps"] = eps;
    context->saved_data["relu"] = relu;
    context->saved_data["shortcut"] = shortcut.has_value();
    context->mark_non_differentiable({found.mean, found.variance});
    return {output, found.mean, found.variance};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[2];
    ops::BatchNormGradients found = ops::batch_norm_backward(
        detail::pixels_of(gradients[0]), {detail::pixels_of(saved[1]), saved[3], saved[4]},
        detail::pixels_of(input), weight, context->saved_data["eps"].toDouble(),
        context->saved_data["relu"].toBool() ? ops::Relu::kApplied : ops::Relu::kAbsent);
    const at::Tensor of_shortcut = context->saved_data["shortcut"].toBool()
                                       ? images_like(found.shortcut, input)
                                       : at::Tensor();
    return {images_like(found.input, input),
            of_shortcut,
            found.weight,
            found.bias,
            at::Tensor(),
            at::Tensor()};
  }
};

// One value per channel has no variance: the module says so.
bool is_fused(const torch::nn::BatchNorm2dImpl& norm, const at::Tensor& input) {
  const at::ScalarType type = input.scalar_type();
  const bool narrow = type == at::kBFloat16 || type == at::kHalf;
  return norm.is_training() && norm.options.affine() && norm.options.track_running_stats() &&
         norm.options.momentum() && input.is_cpu() && input.dim() == 4 &&
         input.numel() > input.size(1) && input.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         norm.weight.scalar_type() == (narrow ? at::kFloat : type);
}

}  // namespace

at::Tensor with_shortcut(const at::Tensor& input, const at::Tensor& shortcut, ops::Relu relu) {
  const at::Tensor sum = shortcut.defined() ? input + shortcut : input;
  return relu == ops::Relu::kApplied ? sum.relu() : sum;
}

at::Tensor normalized(torch::nn::BatchNorm2dImpl& norm, const at::Tensor& input,
                      const at::Tensor& shortcut, ops::Relu relu) {
  if (!is_fused(norm, input)) return with_shortcut(norm.forward(input), shortcut, relu);
  const std::optional<at::Tensor> added =
      shortcut.defined() ? std::optional(shortcut) : std::nullopt;
  const auto results = Normalized::apply(input, added, norm.weight, norm.bias, norm.options.eps(),
                                         relu == ops::Relu::kApplied);
  const at::NoGradGuard no_grad;
  const double momentum = *norm.options.momentum();
  const std::int64_t values = input.numel() / input.size(1);
  const auto count = static_cast<double>(values);
  norm.num_batches_tracked += 1;
  norm.running_mean.mul_(1 - momentum).add_(results[1], momentum);
  norm.running_var.mul_(1 - momentum).add_(results[2], momentum * (count / (count - 1)));
  return results[0];
}

}  // namespace troika
