// The operators on CUDA tensors: outputs are allocated, a kernel is queued, the host goes on. Sums
// that ATen takes here have a fixed order.
#include <torch/library.h>
#include <troika/ops/cuda/tensors.h>
#include <troika/ops/kernels.h>

namespace troika::ops::cuda {
namespace {

at::Tensor losses_of(const at::Tensor& logits, const at::Tensor& targets, bool writes_gradient,
                     double scale) {
  const at::Tensor wanted = in_rows(targets);
  const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kDouble));
  launch_on(logits, CrossEntropy{.logits = logits.data_ptr(),
                                 .targets = wanted.const_data_ptr<std::int64_t>(),
                                 .losses = losses.mutable_data_ptr<double>(),
                                 .rows = logits.size(0),
                                 .classes = logits.size(1),
                                 .writes_gradient = writes_gradient,
                                 .scale = scale});
  return losses.sum();
}

enum class Centring { kNone, kMean };

// Returns output, means (undefined without) and reciprocals.
ThreeTensors normalize(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, double eps, Centring centring) {
  const at::Tensor from = in_rows(input), scale = in_rows(weight);
  const at::Tensor shift = bias ? in_rows(*bias) : at::Tensor();
  check_wide(scale, scalar_of(from));
  if (bias) check_wide(shift, scalar_of(from));
  const at::Tensor output = at::empty_like(from);
  const at::Tensor reciprocal = at::empty({from.size(0)}, scale.options());
  const at::Tensor mean = centring == Centring::kMean ? at::empty_like(reciprocal) : at::Tensor();
  launch_on(from, Norm{.input = from.const_data_ptr(),
                       .weight = scale.const_data_ptr(),
                       .bias = bias ? shift.const_data_ptr() : nullptr,
                       .output = output.mutable_data_ptr(),
                       .mean = mean.defined() ? mean.mutable_data_ptr() : nullptr,
                       .reciprocal = reciprocal.mutable_data_ptr(),
                       .rows = from.size(0),
                       .dim = from.size(1),
                       .eps = eps});
  return {output, mean, reciprocal};
}

// Returns the input's gradient, and the sums of the weight's and, with means, the bias's.
TwoTensors normalize_backward(const at::Tensor& gradient, const at::Tensor& input,
                              const at::Tensor& weight, const std::optional<at::Tensor>& mean,
                              const at::Tensor& reciprocal) {
  const at::Tensor slope = in_rows(gradient), from = in_rows(input), scale = in_rows(weight);
  const at::Tensor factor = in_rows(reciprocal), dx = at::empty_like(from);
  check_wide(scale, scalar_of(from));
  const std::int64_t rows = from.size(0), dim = from.size(1);
  const std::int64_t chunks = (rows + kRowsOfChunk - 1) / kRowsOfChunk;
  const at::Tensor partial = at::empty({mean ? 2 : 1, chunks, dim}, scale.options());
  launch_on(from, NormBackward{.gradient = slope.const_data_ptr(),
                               .input = from.const_data_ptr(),
                               .weight = scale.const_data_ptr(),
                               .mean = mean ? mean->const_data_ptr() : nullptr,
                               .reciprocal = factor.const_data_ptr(),
                               .of_input = dx.mutable_data_ptr(),
                               .of_weight = partial[0].mutable_data_ptr(),
                               .of_bias = mean ? partial[1].mutable_data_ptr() : nullptr,
                               .rows = rows,
                               .dim = dim});
  return {dx, partial.sum(1)};
}

}  // namespace

TwoTensors rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  auto [output, mean, reciprocal] = normalize(input, weight, std::nullopt, eps, Centring::kNone);
  return {std::move(output), std::move(reciprocal)};
}

TwoTensors rms_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                             const at::Tensor& weight, const at::Tensor& reciprocal) {
  auto [dx, sums] = normalize_backward(gradient, input, weight, std::nullopt, reciprocal);
  return {std::move(dx), sums[0]};
}

ThreeTensors layer_norm(const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, double eps) {
  return normalize(input, weight, bias, eps, Centring::kMean);
}

ThreeTensors layer_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                                 const at::Tensor& weight, const at::Tensor& mean,
                                 const at::Tensor& reciprocal) {
  auto [dx, sums] = normalize_backward(gradient, input, weight, in_rows(mean), reciprocal);
  return {std::move(dx), sums[0], sums[1]};
}

at::Tensor square_sums(at::TensorList values) {
  const at::Tensor parts = at::zeros({static_cast<std::int64_t>(values.size()), kSquareParts},
                                     values[0].options().dtype(at::kDouble));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const at::Tensor each = in_rows(values[i]);
    launch_on(each, SquareSum{.values = each.const_data_ptr(),
                              .parts = parts.mutable_data_ptr<double>() + i * kSquareParts,
                              .count = each.numel()});
  }
  return parts.sum(1);
}

at::Tensor column_sums(const at::Tensor& rows, at::ScalarType type) {
  const at::Tensor from = in_rows(rows);
  const at::Tensor parts = at::empty(
      {(from.size(0) + kRowsOfChunk - 1) / kRowsOfChunk, from.size(1)}, from.options().dtype(type));
  check_wide(parts, scalar_of(from));
  launch_on(from, ColumnSums{.values = from.const_data_ptr(),
                             .parts = parts.mutable_data_ptr(),
                             .rows = from.size(0),
                             .dim = from.size(1)});
  return parts.sum(0);
}

// cuBLAS multiplies factors of few bits into a sum in fp32.
void add_product_(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
                  bool overwrites) {
  at::Tensor out = sum;
  const bool wider = left.scalar_type() != sum.scalar_type();
  if (wider && overwrites) {
    at::mm_out(out, left.t(), right, sum.scalar_type());
  } else if (wider) {
    at::addmm_out(out, sum, left.t(), right, sum.scalar_type());
  } else if (overwrites) {
    at::mm_out(out, left.t(), right);
  } else {
    out.addmm_(left.t(), right);
  }
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
            const at::Tensor& exp_avg_sq, const at::Tensor& scale, const at::Tensor& applies,
            double beta1, double beta2, double correction, double eps, double rate, double shrink) {
  for (const at::Tensor& each : {master, gradient, exp_avg, exp_avg_sq}) {
    check_in_rows(each, "what adamw_() updates");
    check_wide(each, scalar_of(master));
  }
  for (const at::Tensor& each : {scale, applies}) {
    TORCH_CHECK(each.device() == master.device() && each.dim() == 0,
                "the scale of adamw_(), and whether it applies, are numbers on the device");
  }
  launch_on(master, AdamW{.master = master.mutable_data_ptr(),
                          .gradient = gradient.const_data_ptr(),
                          .exp_avg = exp_avg.mutable_data_ptr(),
                          .exp_avg_sq = exp_avg_sq.mutable_data_ptr(),
                          .scale = scale.const_data_ptr<double>(),
                          .applies = applies.const_data_ptr<bool>(),
                          .count = master.numel(),
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
  library.impl("layer_norm", TORCH_FN(cuda::layer_norm));
  library.impl("layer_norm_backward", TORCH_FN(cuda::layer_norm_backward));
  library.impl("add_product_", TORCH_FN(cuda::add_product_));
  library.impl("square_sums", TORCH_FN(cuda::square_sums));
  library.impl("column_sums", TORCH_FN(cuda::column_sums));
  library.impl("attention", TORCH_FN(cuda::attention));
  library.impl("attention_backward", TORCH_FN(cuda::attention_backward));
  library.impl("cross_entropy", TORCH_FN(cuda::cross_entropy));
  library.impl("cross_entropy_with_gradient_", TORCH_FN(cuda::cross_entropy_with_gradient_));
  library.impl("dropout", TORCH_FN(cuda::dropout));
  library.impl("add_rows_", TORCH_FN(cuda::add_rows_));
  library.impl("rotate_", TORCH_FN(cuda::rotate_));
  library.impl("adamw_", TORCH_FN(cuda::adamw_));
}
