// Values that every rank can compute for every other, and plain references for the collectives.
#pragma once

#include <ATen/ATen.h>
#include <troika/comm/group.h>

#include <vector>

namespace troika::test {

inline constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                             at::kLong,   at::kInt,   at::kByte};

// Returns the input of `rank`: of both signs and many magnitudes where the dtype has them, so that
// another order of additions gives other bits.
inline at::Tensor input_of(int rank, std::int64_t elements, at::ScalarType dtype) {
  const at::Tensor i = at::arange(elements, at::kLong);
  const at::Tensor mixed = (i * 2654435761LL + (rank + 1) * 40503LL * (i % 977 + 1)) % 10007;
  if (!at::isFloatingType(dtype)) return mixed.to(dtype);
  const at::Tensor value =
      (mixed.to(at::kDouble) / 5003.0 - 1.0) * at::pow(2.0, (i + rank) % 7 - 3);
  return value.to(dtype);
}

inline std::vector<at::Tensor> all_inputs(int ranks, std::int64_t elements, at::ScalarType dtype) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(input_of(rank, elements, dtype));
  return inputs;
}

// One rank after the other; 16-bit floats in fp32, rounded at the end.
inline at::Tensor serial_reduce(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const at::ScalarType dtype = inputs[0].scalar_type();
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  const auto widened = [&](const at::Tensor& t) { return narrow ? t.to(at::kFloat) : t; };
  at::Tensor reduced = widened(inputs[0]).clone();
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    const at::Tensor next = widened(inputs[rank]);
    if (op == ReduceOp::kMax) {
      reduced = at::maximum(reduced, next);
    } else if (op == ReduceOp::kMin) {
      reduced = at::minimum(reduced, next);
    } else {
      reduced = reduced + next;
    }
  }
  if (op == ReduceOp::kAverage) reduced = reduced / static_cast<double>(inputs.size());
  return reduced.to(dtype);
}

// Equal but for the order of additions: within a few roundings of sums of up to `ranks` inputs.
inline bool nearly(const at::Tensor& a, const at::Tensor& b, int ranks) {
  if (!at::isFloatingType(a.scalar_type())) return a.equal(b);
  const double one = a.scalar_type() == at::kDouble     ? 0x1p-52
                     : a.scalar_type() == at::kFloat    ? 0x1p-23
                     : a.scalar_type() == at::kBFloat16 ? 0x1p-8
                                                        : 0x1p-11;
  // Inputs are below 8; 16-bit sums are rounded once, whatever the order.
  const bool narrow = a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf;
  const double error = narrow ? 0x1p-23 * 8 * ranks : one * 8 * ranks;
  return a.sizes() == b.sizes() && at::allclose(a.to(at::kDouble), b.to(at::kDouble), one, error);
}

// The same memory as whole numbers: to at::equal, -0 is +0, and no NaN is itself.
inline at::Tensor bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 8:
      return tensor.detach().view(at::kLong);
    case 4:
      return tensor.detach().view(at::kInt);
    case 2:
      return tensor.detach().view(at::kShort);
    default:
      return tensor;
  }
}

// Equal bits.
inline bool identical(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(bits_of(a), bits_of(b));
}

}  // namespace troika::test
