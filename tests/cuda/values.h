// What the tests of kernels compare: tensors that do not change from run to run, and how near two
// have to be.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/random.h>

#include <algorithm>
#include <string_view>

namespace troika::test {

inline at::Tensor values(at::IntArrayRef shape, std::string_view name, at::ScalarType type) {
  const at::Tensor tensor = at::empty(shape, at::kDouble);
  const RandomStream stream(stream_key(13, name));
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_ptr<double>()[i] = stream.normal(static_cast<std::uint64_t>(i));
  }
  return tensor.to(type);
}

// The type in which kernels compute.
inline at::ScalarType wide(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

// One unit in the last place of values around 1.
inline double epsilon(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 2.3e-16;
    case at::kFloat:
      return 1.2e-7;
    case at::kHalf:
      return 9.8e-4;
    default:
      return 0.0079;
  }
}

inline void expect_near(const at::Tensor& found, const at::Tensor& expected, double units = 16) {
  ASSERT_EQ(found.scalar_type(), expected.scalar_type());
  ASSERT_EQ(found.sizes(), expected.sizes());
  const at::Tensor exact = expected.cpu().to(at::kDouble);
  const double largest = exact.abs().max().item<double>();
  const double apart = (found.cpu().to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LE(apart, units * epsilon(expected.scalar_type()) * std::max(1.0, largest));
}

}  // namespace troika::test
