#include <troika/base/random.h>
#include <troika/data/sources/random/random_features.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troika {
namespace {

// exp(-y) for y in [0, 10], from the series of exp(y), whose terms all have one sign.
double portable_exp_minus(double y) {
  double sum = 1;
  for (int k = 60; k >= 1; --k) sum = 1 + sum * y / k;
  return 1 / sum;
}

double normal_density(double x) {
  return portable_exp_minus(x * x / 2) / std::sqrt(2 * std::numbers::pi);
}

// The normal distribution function: Marsaglia, "Evaluating the normal distribution", 2004, eq. (3).
double normal_distribution(double x) {
  double term = x, sum = x;
  for (int k = 3; k < 121; k += 2) {
    term *= x * x / k;
    sum += term;
  }
  return 0.5 + sum * normal_density(x);
}

// Newton's method from `x` in [0, the answer]: from there it never overshoots, as the distribution
// function bends towards the axis.
double normal_quantile(double p, double x) {
  for (int i = 0; i < 8; ++i) x -= (normal_distribution(x) - p) / normal_density(x);
  return x;
}

}  // namespace

NormalTable::NormalTable() {
  const std::size_t cells = quantiles_.size() - 1;
  double quantile = 0;
  quantiles_[cells / 2] = 0;
  for (std::size_t i = cells / 2 + 1; i <= cells; ++i) {
    // The last one is cut where an eighth of a cell's probability is left.
    const double p = std::min(static_cast<double>(i), static_cast<double>(cells) - 0.125) /
                     static_cast<double>(cells);
    quantile = normal_quantile(p, quantile);
    quantiles_[i] = static_cast<float>(quantile);
    quantiles_[cells - i] = -quantiles_[i];
  }
}

void NormalTable::fill(std::uint64_t key, std::uint64_t sample, std::span<float> out) const {
  constexpr int kRestBits = 32 - kCellBits;
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (i % 4 == 0) words = philox(key, sample, i / 4);
    const std::uint32_t cell = words[i % 4] >> kRestBits;
    const auto rest =
        static_cast<float>(words[i % 4] & ((std::uint32_t{1} << kRestBits) - 1)) * 0x1.0p-20F;
    out[i] = quantiles_[cell] + rest * (quantiles_[cell + 1] - quantiles_[cell]);
  }
}

LinearTeacher::LinearTeacher(std::uint64_t key, std::size_t inputs, std::size_t outputs)
    : outputs_(outputs), weights_(inputs * outputs) {
  const RandomStream stream(key);
  const double scale = 1 / std::sqrt(static_cast<double>(inputs));
  for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] = stream.normal(i) * scale;
}

void LinearTeacher::score(std::span<const float> features, std::span<double> scores) const {
  std::fill(scores.begin(), scores.end(), 0.0);
  // Ascending over the features, so that vectorising over the scores changes no bit.
  for (std::size_t i = 0; i < features.size(); ++i) {
    const double feature = features[i];
    const double* weights = weights_.data() + i * outputs_;
    for (std::size_t j = 0; j < outputs_; ++j) scores[j] += feature * weights[j];
  }
}

}  // namespace troika
