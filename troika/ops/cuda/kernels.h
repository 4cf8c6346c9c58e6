// Internal: the operators' kernels for CUDA, a part of its plug-in (device/cuda). What is missing
// here is left to the composite.
#pragma once

#include <troika/ops/operators.h>

namespace troika::ops::cuda {

TwoTensors rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps);
TwoTensors rms_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                             const at::Tensor& weight, const at::Tensor& reciprocal);
TwoTensors attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask);
ThreeTensors attention_backward(const at::Tensor& gradient, const at::Tensor& query,
                                const at::Tensor& key, const at::Tensor& value,
                                const std::optional<at::Tensor>& mask, const at::Tensor& output,
                                const at::Tensor& log_sum);
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);
at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits, const at::Tensor& targets,
                                        double scale);
at::Tensor dropout(const at::Tensor& input, const at::Tensor& sample_ids, std::int64_t first,
                   std::int64_t per_sample, double probability, std::int64_t key);
void add_rows_(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& rows);
void rotate_(const at::Tensor& heads, const at::Tensor& positions, const at::Tensor& table,
             bool backward);
void adamw_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& exp_avg,
            const at::Tensor& exp_avg_sq, double gradient_scale, double beta1, double beta2,
            double correction, double eps, double rate, double shrink);

}  // namespace troika::ops::cuda
