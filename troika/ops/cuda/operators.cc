// The operators on CUDA tensors: outputs are allocated, a kernel is queued, the host goes on. Sums
// that ATen takes here have a fixed order.
#include <torch/library.h>
#include <troika/ops/cuda/kernels.h>
#include <troika/ops/cuda/tensors.h>

namespace troika::ops::cuda {
namespace {

at::Tensor losses_of(const at::Tensor& logits, const at::Tensor& targets, bool writes_gradient,
                     double scale) {
  const at::Tensor wanted = in_rows(targets);
  const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kDouble));
  TORCH_CHECK(logits.scalar_type() == at::kDouble || logits.scalar_type() == at::kFloat,
              "cross-entropy takes logits in fp32 or fp64");
  launch_on(logits, CrossEntropy{.logits = logits.data_ptr(),
                                 .targets = wanted.const_data_ptr<std::int64_t>(),
                                 .losses = losses.mutable_data_ptr<double>(),
                                 .rows = logits.size(0),
                                 .classes = logits.size(1),
                                 .writes_gradient = writes_gradient,
                                 .scale = scale});
  return losses.sum();
}

}  // namespace

TwoTensors rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  const at::Tensor from = in_rows(input), scale = in_rows(weight);
  check_wide(scale, scalar_of(from));
  TwoTensors result{at::empty_like(from), at::empty({input.size(0)}, weight.options())};
  launch_on(from, RmsNorm{.input = from.const_data_ptr(),
                          .weight = scale.const_data_ptr(),
                          .output = std::get<0>(result).mutable_data_ptr(),
                          .reciprocal = std::get<1>(result).mutable_data_ptr(),
                          .rows = from.size(0),
                          .dim = from.size(1),
                          .eps = eps});
  return result;
}

TwoTensors rms_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                             const at::Tensor& weight, const at::Tensor& reciprocal) {
  const at::Tensor slope = in_rows(gradient), from = in_rows(input), scale = in_rows(weight);
  const at::Tensor factor = in_rows(reciprocal), dx = at::empty_like(from);
  check_wide(scale, scalar_of(from));
  const std::int64_t rows = from.size(0), dim = from.size(1);
  const at::Tensor partial = at::empty({(rows + kNormRows - 1) / kNormRows, dim}, weight.options());
  launch_on(from, RmsNormBackward{.gradient = slope.const_data_ptr(),
                                  .input = from.const_data_ptr(),
                                  .weight = scale.const_data_ptr(),
                                  .reciprocal = factor.const_data_ptr(),
                                  .of_input = dx.mutable_data_ptr(),
                                  .partial = partial.mutable_data_ptr(),
                                  .rows = rows,
                                  .dim = dim});
  return {dx, partial.sum(0)};
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  return losses_of(in_rows(logits), targets, false, 1);
}

at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits, const at::Tensor& targets,
                                        double scale) {
  check_in_rows(logits, "what cross_entropy_with_gradient_() overwrites");
  return losses_of(logits, targets, true, scale);
}

at::Tensor dropout(const at::Tensor& input, const at::Tensor& sample_ids, std::int64_t first,
                   std::int64_t per_sample, double probability, std::int64_t key) {
  const at::Tensor from = in_rows(input), ids = in_rows(sample_ids), output = at::empty_like(from);
  launch_on(from, Dropout{.input = from.const_data_ptr(),
                          .output = output.mutable_data_ptr(),
                          .sample_ids = ids.const_data_ptr<std::int64_t>(),
                          .first = first,
                          .count = from.numel(),
                          .per_sample = per_sample,
                          .key = static_cast<std::uint64_t>(key),
                          .threshold = dropout_threshold(probability),
                          .keep_scale = 1 / (1 - probability)});
  return output;
}

// ATen sorts the indices and adds the rows of each in their order: the same bits in each run, where
// index_add_() has none.
void add_rows_(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& rows) {
  const c10::List<std::optional<at::Tensor>> places({indices.view({-1})});
  table.index_put_(places, rows.to(table.scalar_type()), /*accumulate=*/true);
}

void rotate_(const at::Tensor& heads, const at::Tensor& positions, const at::Tensor& table,
             bool backward) {
  check_in_rows(heads, "what rotate_() turns");
  const at::Tensor places = in_rows(positions), angles = in_rows(table);
  check_wide(angles, scalar_of(heads));
  launch_on(heads, Rotation{.heads = heads.mutable_data_ptr(),
                            .positions = places.const_data_ptr<std::int64_t>(),
                            .table = angles.const_data_ptr(),
                            .tokens = heads.size(0),
                            .width = heads.size(1),
                            .half = table.size(2),
                            .table_positions = table.size(1),
                            .backward = backward});
}

void adamw_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& exp_avg,
            const at::Tensor& exp_avg_sq, double gradient_scale, double beta1, double beta2,
            double correction, double eps, double rate, double shrink) {
  for (const at::Tensor& each : {master, gradient, exp_avg, exp_avg_sq}) {
    check_in_rows(each, "what adamw_() updates");
    check_wide(each, scalar_of(master));
  }
  launch_on(master, AdamW{.master = master.mutable_data_ptr(),
                          .gradient = gradient.const_data_ptr(),
                          .exp_avg = exp_avg.mutable_data_ptr(),
                          .exp_avg_sq = exp_avg_sq.mutable_data_ptr(),
                          .count = master.numel(),
                          .gradient_scale = gradient_scale,
                          .beta1 = beta1,
                          .beta2 = beta2,
                          .correction = correction,
                          .eps = eps,
                          .rate = rate,
                          .shrink = shrink});
}

}  // namespace troika::ops::cuda

// When the plug-in is loaded. The library `troika` is defined in ops/operators.cc, before or after.
TORCH_LIBRARY_IMPL(troika, CUDA, library) {
  using namespace troika::ops;  // NOLINT(google-build-using-namespace)
  library.impl("rms_norm", TORCH_FN(cuda::rms_norm));
  library.impl("rms_norm_backward", TORCH_FN(cuda::rms_norm_backward));
  library.impl("attention", TORCH_FN(cuda::attention));
  library.impl("attention_backward", TORCH_FN(cuda::attention_backward));
  library.impl("cross_entropy", TORCH_FN(cuda::cross_entropy));
  library.impl("cross_entropy_with_gradient_", TORCH_FN(cuda::cross_entropy_with_gradient_));
  library.impl("dropout", TORCH_FN(cuda::dropout));
  library.impl("add_rows_", TORCH_FN(cuda::add_rows_));
  library.impl("rotate_", TORCH_FN(cuda::rotate_));
  library.impl("adamw_", TORCH_FN(cuda::adamw_));
}
