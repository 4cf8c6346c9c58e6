// The numbers behind generated features and their targets: fast, addressed by sample, and the same
// bits on every machine, because only operations that IEEE 754 rounds exactly are used, in a fixed
// order, without contraction. No tensors here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troika {

// Normal numbers at one Philox block for four of them: the inverse of the normal distribution
// function, linear between 4097 stored quantiles. The tails end at +-4; mean 0, and variance 1 to
// one part in a thousand. Const access is thread safe.
class NormalTable {
 public:
  NormalTable();
  // Fills `out` with the numbers of (key, sample), from the first one.
  void fill(std::uint64_t key, std::uint64_t sample, std::span<float> out) const;

 private:
  static constexpr int kCellBits = 12;
  std::array<float, (1 << kCellBits) + 1> quantiles_;
};

// A fixed random linear map with standard normal weights over the square root of `inputs`, so that
// standard normal features give standard normal scores. Const access is thread safe.
class LinearTeacher {
 public:
  LinearTeacher(std::uint64_t key, std::size_t inputs, std::size_t outputs);
  // Maps features [inputs] to scores [outputs].
  void score(std::span<const float> features, std::span<double> scores) const;

 private:
  std::size_t outputs_;
  std::vector<double> weights_;  // [inputs, outputs]
};

}  // namespace troika
