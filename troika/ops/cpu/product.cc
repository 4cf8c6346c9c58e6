// The gradient of a weight on the host: bf16 factors are multiplied and summed in fp32, straight
// into the sum, so that no product as large as a weight is written beside it. A product of fp16
// factors is rounded to fp16, where it overflows as the loss scale expects.
#include <ATen/ATen.h>
#include <troika/ops/cpu/bf16_product.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

#include <algorithm>
#include <limits>

namespace troika::ops::cpu {
namespace {

bool fits_int(const at::Tensor& matrix) {
  return std::max(matrix.size(0), matrix.size(1)) <= std::numeric_limits<int>::max();
}

const std::uint16_t* bits_of(const at::Tensor& matrix) {
  return reinterpret_cast<const std::uint16_t*>(matrix.const_data_ptr<at::BFloat16>());
}

// Adds left^T right to `sum`; all have elements.
void add_bf16_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  const auto m = static_cast<int>(sum.size(0)), n = static_cast<int>(sum.size(1));
  const auto k = static_cast<int>(left.size(0));
  bf16_product()(kRowMajor, kTransposed, kAsIs, m, n, k, 1, bits_of(left), m, bits_of(right), n, 1,
                 sum.mutable_data_ptr<float>(), n);
}

// Adds left^T right to `sum`, with copies in fp32 of some of the left factor's columns at a time.
void add_product_of_copies(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  constexpr std::int64_t kElements = std::int64_t{1} << 20, kFewest = 64;
  const std::int64_t rows = left.size(0), columns = left.size(1);
  const std::int64_t width = std::min(columns, std::max(kFewest, kElements / rows));
  const at::Tensor wide = right.to(at::kFloat);
  const at::Tensor buffer = at::empty({rows, width}, wide.options());
  for (std::int64_t begin = 0; begin < columns; begin += width) {
    const std::int64_t count = std::min(width, columns - begin);
    const at::Tensor part = buffer.narrow(1, 0, count);
    part.copy_(left.narrow(1, begin, count));
    sum.narrow(0, begin, count).addmm_(part.t(), wide);
  }
}

}  // namespace

void add_product_(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
                  bool overwrites) {
  if (left.scalar_type() != at::kBFloat16 || sum.scalar_type() != at::kFloat) {
    return composite::add_product_(sum, left, right, overwrites);
  }
  // Zeroing and adding is faster than MKL's own overwriting.
  if (overwrites) sum.zero_();
  if (sum.numel() == 0 || left.numel() == 0) return;
  if (bf16_product() != nullptr && sum.is_contiguous() && fits_int(sum) && fits_int(left)) {
    const at::Tensor left_rows = in_rows(left), right_rows = in_rows(right);
    if (!sum.is_meta()) add_bf16_product(sum, left_rows, right_rows);
  } else {
    add_product_of_copies(sum, left, right);
  }
}

}  // namespace troika::ops::cpu
