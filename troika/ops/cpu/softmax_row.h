// Internal: the sums of a softmax over a row of logits, which the caller passes over while it is in
// cache. Logits of few bits are computed with in fp32. Loops have fixed lanes and blocks, so that a
// row has the same sums with any vectors and any number of threads.
#pragma once

#include <ATen/OpMathType.h>
#include <troika/ops/cpu/exponential.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace troika::ops {

constexpr std::int64_t kSoftmaxLanes = 64, kSoftmaxBlock = 1024;

// Returns the largest of n logits: -inf of none. Passes over NaN, which the sum below has.
template <typename Scalar, typename Real = at::opmath_type<Scalar>>
[[gnu::always_inline]] inline Real largest_logit(const Scalar* logits, std::int64_t n) {
  Real lanes[kSoftmaxLanes];
  std::fill_n(lanes, kSoftmaxLanes, -std::numeric_limits<Real>::infinity());
  std::int64_t i = 0;
  for (; i + kSoftmaxLanes <= n; i += kSoftmaxLanes) {
    for (std::int64_t lane = 0; lane < kSoftmaxLanes; ++lane) {
      const auto logit = static_cast<Real>(logits[i + lane]);
      lanes[lane] = logit > lanes[lane] ? logit : lanes[lane];
    }
  }
  for (; i < n; ++i) {
    const auto logit = static_cast<Real>(logits[i]);
    lanes[0] = logit > lanes[0] ? logit : lanes[0];
  }
  return *std::max_element(lanes, lanes + kSoftmaxLanes);
}

// Returns the sum of n numbers, in lanes that are added in pairs.
template <typename Real>
[[gnu::always_inline]] inline Real sum_in_lanes(const Real* values, std::int64_t n) {
  Real lanes[kSoftmaxLanes] = {};
  std::int64_t i = 0;
  for (; i + kSoftmaxLanes <= n; i += kSoftmaxLanes) {
    for (std::int64_t lane = 0; lane < kSoftmaxLanes; ++lane) lanes[lane] += values[i + lane];
  }
  for (; i < n; ++i) lanes[0] += values[i];
  for (std::int64_t width = kSoftmaxLanes / 2; width > 0; width /= 2) {
    for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Writes exp(logit - shift) of n logits to `out`, and returns their sum. No logit is above `shift`.
template <typename Scalar, typename Real>
[[gnu::always_inline]] inline Real write_exponentials(const Scalar* logits, std::int64_t n,
                                                      Real shift, Real* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = exponential_of_negative(static_cast<Real>(logits[i]) - shift);
  }
  return sum_in_lanes(out, n);
}

// Calls `each(begin, count)` for the blocks of a row, and returns the sum of its results in fp64.
template <typename Function>
[[gnu::always_inline]] inline double sum_of_blocks(std::int64_t n, const Function& each) {
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += kSoftmaxBlock) {
    sum += each(begin, std::min(kSoftmaxBlock, n - begin));
  }
  return sum;
}

// Returns the sum of exp(logit - shift) of a row of n logits.
template <typename Scalar, typename Real>
[[gnu::always_inline]] inline double sum_of_exponentials(const Scalar* logits, std::int64_t n,
                                                         Real shift) {
  Real block[kSoftmaxBlock];
  return sum_of_blocks(n, [&](std::int64_t begin, std::int64_t count) {
    return write_exponentials(logits + begin, count, shift, block);
  });
}

}  // namespace troika::ops
