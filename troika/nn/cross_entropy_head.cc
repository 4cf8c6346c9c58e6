#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/nn/cross_entropy_head.h>
#include <troika/nn/loss_head.h>
#include <troika/ops/product.h>
#include <troika/param/shape_text.h>

#include <string>
#include <utility>

namespace troika {
namespace {

namespace ag = torch::autograd;

LogitChunks chunks_for(const at::Tensor& tensor) {
  return tensor.is_cpu() ? LogitChunks::kOnHost : LogitChunks::kOnDevice;
}

// The loss is a sum times `scale`; its gradients are computed with it.
class Head : public ag::Function<Head> {
 public:
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets, double scale,
                            std::optional<at::ScalarType> type) {
    const bool wants_hidden = hidden.requires_grad(), wants_weight = weight.requires_grad();
    const at::Tensor input = type ? hidden.to(*type) : hidden;
    const at::Tensor factor = type ? weight.to(*type) : weight;
    if (!wants_hidden && !wants_weight) {
      return number(evaluate_head(input, factor, targets, chunks_for(input)).sum, weight, scale);
    }
    at::Tensor gradient;
    if (wants_weight) gradient = at::empty_like(weight);
    ops::Write write = ops::Write::kOverwrite;
    const HeadLoss loss = differentiate_head(
        input, factor, targets, scale, chunks_for(input),
        wants_hidden ? InputGradient::kWanted : InputGradient::kUnused,
        [&](const at::Tensor& logits, const at::Tensor& rows) {
          if (!wants_weight) return;
          ops::add_product_(gradient, logits, rows, std::exchange(write, ops::Write::kAdd));
        });
    if (wants_weight && write == ops::Write::kOverwrite) gradient.zero_();  // of no tokens
    at::Tensor by_hidden = loss.input_gradient;
    if (by_hidden.defined()) by_hidden = by_hidden.to(hidden.scalar_type());
    context->saved_data["hidden"] = by_hidden;
    context->saved_data["weight"] = gradient;
    return number(loss.sum, weight, scale);
  }

  static ag::tensor_list backward(ag::AutogradContext* context, const ag::tensor_list& gradients) {
    const at::Tensor& by_loss = gradients[0];
    const auto scaled = [&](const char* name) {
      const at::Tensor gradient = context->saved_data[name].toTensor();
      if (!gradient.defined()) return gradient;
      const bool is_one = by_loss.is_cpu() && by_loss.item<double>() == 1;
      return is_one ? gradient : gradient * by_loss.to(gradient.scalar_type());
    };
    return {scaled("hidden"), scaled("weight"), {}, {}, {}};
  }

 private:
  static at::Tensor number(const at::Tensor& sum, const at::Tensor& like, double scale) {
    if (!sum.defined()) return at::full({}, 0 * scale, like.options());
    return (sum.reshape({}) * scale).to(like.options());
  }
};

void check_shapes(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  const bool fits = hidden.dim() > 0 && weight.dim() == 2 && hidden.size(-1) == weight.size(1) &&
                    targets.sizes() == hidden.sizes().slice(0, hidden.dim() - 1) &&
                    targets.scalar_type() == at::kLong;
  if (fits) return;
  throw UsageError("cross_entropy_head() was given hidden " + shape_text(hidden.sizes()) +
                       ", weight " + shape_text(weight.sizes()) + " and " +
                       c10::toString(targets.scalar_type()) + " targets " +
                       shape_text(targets.sizes()),
                   "they are [..., dim], [vocabulary, dim] and int64 [...]");
}

// Looks at host memory alone.
void check_targets(const at::Tensor& targets, std::int64_t vocabulary) {
  if (!targets.is_cpu() || targets.numel() == 0) return;
  const auto most = targets.max().item<std::int64_t>();
  if (most < vocabulary) return;
  throw DataError("a target is " + std::to_string(most) + ", and the weight has " +
                  std::to_string(vocabulary) + " rows");
}

std::optional<at::ScalarType> autocast_type(const at::Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  if (tensor.scalar_type() == at::kDouble || !at::autocast::is_autocast_enabled(device)) return {};
  return at::autocast::get_autocast_dtype(device);
}

}  // namespace

at::Tensor cross_entropy_head(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets, HeadReduction reduction) {
  check_shapes(hidden, weight, targets);
  check_targets(targets, weight.size(0));
  double scale = 1;
  if (reduction == HeadReduction::kMean) {
    scale = 1 / static_cast<double>(targets.ge(0).sum().item<std::int64_t>());
  }
  const std::optional<at::ScalarType> type = autocast_type(hidden);
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)});
  return Head::apply(rows.contiguous(), weight, targets.reshape({-1}).contiguous(), scale,
                     type ? type : std::optional(weight.scalar_type()));
}

}  // namespace troika
