// Attention and its gradient in ATen's operators, for devices without a kernel of their own.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>

#include <cmath>
#include <limits>

namespace troika::ops::composite {
namespace {

at::ScalarType accumulated(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.to(accumulated(tensor.scalar_type()));
}

double scale_of(const at::Tensor& query) {
  return 1 / std::sqrt(static_cast<double>(query.size(3)));
}

// [samples, heads, length, length], masked.
at::Tensor scores_of(const at::Tensor& query, const at::Tensor& key,
                     const std::optional<at::Tensor>& mask) {
  at::Tensor scores = at::matmul(query, key.transpose(2, 3)).mul_(scale_of(query));
  if (mask) return scores.add_(*mask);
  const std::int64_t length = query.size(2);
  const at::Tensor later = at::ones({length, length}, query.options().dtype(at::kBool)).triu_(1);
  return scores.masked_fill_(later, -std::numeric_limits<double>::infinity());
}

}  // namespace

TwoTensors attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask) {
  const at::Tensor scores = scores_of(widened(query), widened(key), mask);
  const at::Tensor log_sum = scores.logsumexp(3);
  const at::Tensor probability = (scores - log_sum.unsqueeze(3)).exp_();
  return {at::matmul(probability, widened(value)).to(value.scalar_type()), log_sum};
}

// With P = softmax(S), O = P V: dV = P^T dO, dS = P (dO V^T - sum(dO O)), dQ = dS K, dK = dS^T Q.
ThreeTensors attention_backward(const at::Tensor& gradient, const at::Tensor& query,
                                const at::Tensor& key, const at::Tensor& value,
                                const std::optional<at::Tensor>& mask, const at::Tensor& output,
                                const at::Tensor& log_sum) {
  const at::Tensor q = widened(query), k = widened(key), v = widened(value), d = widened(gradient);
  const at::Tensor probability = (scores_of(q, k, mask) - log_sum.unsqueeze(3)).exp_();
  const at::Tensor dot = (d * widened(output)).sum(3, true);
  const at::Tensor slope =
      (at::matmul(d, v.transpose(2, 3)) - dot).mul_(probability).mul_(scale_of(query));
  return {at::matmul(slope, k).to(query.scalar_type()),
          at::matmul(slope.transpose(2, 3), q).to(key.scalar_type()),
          at::matmul(probability.transpose(2, 3), d).to(value.scalar_type())};
}

}  // namespace troika::ops::composite
