#include <troika/base/error.h>
#include <troika/nn/sync_batch_norm.h>

#include <torch/torch.h>

#include <sstream>
#include <vector>

namespace troika {
namespace {

// All dimensions but that of the channels.
std::vector<std::int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  return dims;
}

// [C] as [1, C, 1, ...].
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

std::int64_t count_per_channel(const at::Tensor& input) {
  return input.size(1) == 0 ? 0 : input.numel() / input.size(1);
}

// Narrower types are added up in fp32, as batch_norm does.
at::ScalarType accumulated(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

struct Moments {
  at::Tensor mean, variance;  // [C], fp64
  double count;               // per channel, of all ranks
};

// Each rank's count, mean and sum of squared differences from it, combined in rank order.
Moments moments_of_all(const at::Tensor& input, const Group& group, const Call& call) {
  const std::int64_t channels = input.size(1), count = count_per_channel(input);
  const at::TensorOptions options = input.options().dtype(at::kDouble);
  at::Tensor own = at::zeros({2 * channels + 1}, options);
  if (count > 0) {
    const auto dims = reduced_dims(input);
    const at::Tensor values = input.to(accumulated(input.scalar_type()));
    const at::Tensor mean = values.mean(dims);
    own.narrow(0, 0, channels).copy_(mean);
    own.narrow(0, channels, channels)
        .copy_((values - per_channel(mean, values)).square_().sum(dims));
  }
  own[2 * channels] = static_cast<double>(count);
  const at::Tensor all = at::empty({group.size(), 2 * channels + 1}, options);
  group.all_gather(all.view({-1}), own, call).wait();

  const at::Tensor counts = all.select(1, 2 * channels).to(at::kCPU);
  Moments total{at::zeros({channels}, options), at::zeros({channels}, options), 0};
  for (int rank = 0; rank < group.size(); ++rank) {
    const double theirs = counts[rank].item<double>();
    if (theirs == 0) continue;
    const at::Tensor difference = all[rank].narrow(0, 0, channels) - total.mean;
    const double sum = total.count + theirs;
    total.mean += difference * (theirs / sum);
    total.variance += all[rank].narrow(0, channels, channels) +
                      difference.square() * (total.count * theirs / sum);
    total.count = sum;
  }
  total.variance /= total.count;
  return total;
}

// What the backward pass needs beside tensors.
struct Context final : torch::CustomClassHolder {
  Context(double the_count, Group the_group, Seconds the_timeout,
          std::shared_ptr<double> the_weight)
      : count(the_count),
        group(std::move(the_group)),
        timeout(the_timeout),
        weight(std::move(the_weight)) {}
  double count;
  Group group;
  Seconds timeout;
  std::shared_ptr<double> weight;
};

// y = (x - mean) / sqrt(variance + eps), with statistics that depend on every rank's x.
//
// With L = sum_s w_s L_s / sum_s w_s, and gradients dy_s of L_s, the gradient of w_r L_r's share is
//   dx_r = (dy_r - sum_s w_s sum(dy_s) / (w_r n) - y_r sum_s w_s sum(dy_s y_s) / (w_r n)) /
//   deviation
// (Ioffe and Szegedy, section 3, with the batch of all ranks as the batch), n its samples.
class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& mean, const at::Tensor& inverse_deviation,
                            const c10::intrusive_ptr<Context>& more) {
    const at::Tensor normalised =
        (input - per_channel(mean, input)).mul_(per_channel(inverse_deviation, input));
    context->save_for_backward({normalised, inverse_deviation});
    context->saved_data["more"] = c10::IValue::make_capsule(more);
    return normalised;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &normalised = saved[0], &inverse_deviation = saved[1];
    const at::Tensor& gradient = gradients[0];
    const auto capsule = context->saved_data["more"].toCapsule();
    const auto& more = static_cast<const Context&>(*capsule);
    const std::int64_t channels = normalised.size(1);
    const auto dims = reduced_dims(normalised);
    const double weight = *more.weight == 0 ? 1 : *more.weight;
    const at::Tensor sums = at::zeros({2, channels}, gradient.options().dtype(at::kDouble));
    if (*more.weight != 0) {  // what has no weight does not count, not even a NaN
      sums[0].copy_(gradient.sum(dims));
      sums[1].copy_((gradient * normalised).sum(dims));
      sums.mul_(*more.weight);
    }
    more.group.all_reduce(sums, ReduceOp::kSum, {"batch-norm backward", Deadline::in(more.timeout)})
        .wait();
    const at::Tensor means = sums.div_(weight * more.count).to(normalised.scalar_type());
    const at::Tensor result =
        (gradient - per_channel(means[0], gradient) - normalised * per_channel(means[1], gradient))
            .mul_(per_channel(inverse_deviation, gradient));
    return {result, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                                     const Session& session)
    : SyncBatchNormImpl(options, session.world(), session.timeout()) {}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Group group,
                                     Seconds timeout)
    : NormImplBase(options), group_(std::move(group)), timeout_(timeout) {}

void SyncBatchNormImpl::set_data_parallel(std::shared_ptr<double> weight, Group group) {
  weight_ = std::move(weight);
  group_ = std::move(group);
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  if (!is_training() && options.track_running_stats()) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, false, 0, options.eps(),
                          false);
  }
  const at::Tensor values = input.to(accumulated(input.scalar_type()));
  Moments moments;
  {
    const at::NoGradGuard no_grad;
    moments =
        moments_of_all(values.detach(), group_, {"batch-norm forward", Deadline::in(timeout_)});
    if (moments.count < 2) {
      throw UsageError("SyncBatchNorm needs more than one value per channel in training",
                       "the batches of all ranks together are too small");
    }
    if (is_training() && options.track_running_stats())
      update_running(moments.mean, moments.variance, moments.count);
  }
  const at::ScalarType dtype = values.scalar_type();
  const at::Tensor normalised = Normalise::apply(
      values, moments.mean.to(dtype), (moments.variance + options.eps()).rsqrt_().to(dtype),
      c10::make_intrusive<Context>(moments.count, group_, timeout_, weight_));
  at::Tensor output = normalised;
  if (options.affine()) {
    output = output * per_channel(weight.to(dtype), input) + per_channel(bias.to(dtype), input);
  }
  return output.to(input.scalar_type());
}

// With the unbiased variance, as torch::nn::BatchNorm does.
void SyncBatchNormImpl::update_running(const at::Tensor& mean, const at::Tensor& variance,
                                       double count) {
  num_batches_tracked += 1;
  const double momentum =
      options.momentum() ? *options.momentum() : 1.0 / num_batches_tracked.item<double>();
  running_mean.mul_(1 - momentum).add_(mean.to(running_mean.scalar_type()), momentum);
  running_var.mul_(1 - momentum)
      .add_((variance * (count / (count - 1))).to(running_var.scalar_type()), momentum);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "troika::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  std::ostringstream text;
  text << "SyncBatchNorm of " << options.num_features() << " channels is given " << input.sizes();
  throw UsageError(text.str(), "it takes [N, C] or [N, C, ...]");
}

}  // namespace troika
