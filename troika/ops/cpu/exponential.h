// Internal: exp(x) in fp32 and fp64, of additions and multiplications that the compiler can
// vectorise: with exp(x) = 2^k exp(r), k whole and |r| <= log(2) / 2, exp(r) is its Taylor series.
// The relative error is below two units in the last place.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace troika::ops {

// Numbers of the reduction. log(2) is high + low, where `high` has so few bits that k x high is
// exact (Cody and Waite 1980). Adding `rounder` moves the whole number k into the last bits.
template <typename Real>
struct Exponential;

template <>
struct Exponential<float> {
  using Bits = std::uint32_t;
  static constexpr float kPerLog2 = 0x1.715476p0F, kHigh = 0x1.63p-1F, kLow = -0x1.bd0106p-13F;
  static constexpr float kRounder = 0x1.8p23F, kLeast = -87;
  static constexpr int kDegree = 7;
};

template <>
struct Exponential<double> {
  using Bits = std::uint64_t;
  static constexpr double kPerLog2 = 0x1.71547652b82fep0, kHigh = 0x1.62e42feep-1;
  static constexpr double kLow = 0x1.a39ef35793c76p-33, kRounder = 0x1.8p52, kLeast = -708;
  static constexpr int kDegree = 13;
};

constexpr double factorial(int n) {
  return n < 2 ? 1 : n * factorial(n - 1);
}

// Returns the terms r^(n - first) / n! from n = `first` on.
template <int first, typename Real>
[[gnu::always_inline]] inline Real exponential_series(Real r) {
  constexpr auto kTerm = static_cast<Real>(1 / factorial(first));
  if constexpr (first == Exponential<Real>::kDegree) {
    return kTerm;
  } else {
    return kTerm + r * exponential_series<first + 1>(r);
  }
}

// Returns exp(x) of an x that is not above 0. Below `kLeast`, where results are hardly normal
// numbers, that is 0; of NaN it is NaN.
template <typename Real>
[[gnu::always_inline]] inline Real exponential_of_negative(Real x) {
  using Numbers = Exponential<Real>;
  using Bits = typename Numbers::Bits;
  constexpr int kMantissa = std::numeric_limits<Real>::digits - 1;
  constexpr Bits kBias = std::numeric_limits<Real>::max_exponent - 1;
  const Real rounded = x * Numbers::kPerLog2 + Numbers::kRounder, k = rounded - Numbers::kRounder;
  const Real r = (x - k * Numbers::kHigh) - k * Numbers::kLow;
  const Bits exponent = std::bit_cast<Bits>(rounded) - std::bit_cast<Bits>(Numbers::kRounder);
  const auto power = std::bit_cast<Real>(static_cast<Bits>((exponent + kBias) << kMantissa));
  const Real value = exponential_series<0>(r) * power;
  return x < Numbers::kLeast ? Real(0) : value;
}

}  // namespace troika::ops
