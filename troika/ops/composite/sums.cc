// Sums of squares and of columns in ATen's operators.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>

namespace troika::ops::composite {

at::Tensor square_sums(at::TensorList values) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& each : values) {
    sums.push_back(at::linalg_vector_norm(each, 2, {}, /*keepdim=*/false, at::kDouble).square());
  }
  return at::stack(sums);
}

at::Tensor column_sums(const at::Tensor& rows, at::ScalarType type) {
  return rows.sum(0, /*keepdim=*/false, type);
}

}  // namespace troika::ops::composite
