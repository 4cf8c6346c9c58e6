#include <ATen/ATen.h>
#include <troika/param/rounding.h>

#include <algorithm>
#include <limits>

namespace troika {
namespace {

// How far apart rounding leaves values in some hundred steps, over the largest: so many units in
// the last place as a random walk does not come to, in any of many elements; of numbers with few
// digits few, as what is added is seldom so close to the middle of two that it makes a difference.
double rounding_of(at::ScalarType dtype) {
  constexpr double kUnits = 256, kFewUnits = 2;
  switch (dtype) {
    case at::kDouble:
      return kUnits * std::numeric_limits<double>::epsilon();
    case at::kFloat:
      return kUnits * std::numeric_limits<float>::epsilon();
    case at::kHalf:
      return kFewUnits * std::numeric_limits<c10::Half>::epsilon();
    case at::kBFloat16:
      return kFewUnits * std::numeric_limits<c10::BFloat16>::epsilon();
    default:
      return 0;
  }
}

}  // namespace

bool is_equal_but_for_rounding(const at::Tensor& actual, const at::Tensor& expected) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  if (!actual.is_floating_point()) return actual.equal(expected);
  double apart = 0, scale = 0;
  for (std::int64_t at = 0; at < actual.numel(); at += kBlock) {
    const auto block = [&](const at::Tensor& rows) {
      return rows.view(-1).narrow(0, at, std::min(kBlock, rows.numel() - at)).to(at::kDouble);
    };
    const at::Tensor a = block(actual), b = block(expected);
    const at::Tensor same = (a == b).logical_or(a.isnan().logical_and(b.isnan()));
    const double here = (a - b).abs().masked_fill(same, 0).max().item<double>();
    if (!(here <= std::numeric_limits<double>::max())) return false;
    apart = std::max(apart, here);
    scale =
        std::max(scale, b.abs().masked_fill(b.isfinite().logical_not(), 0).max().item<double>());
  }
  return apart <= rounding_of(actual.scalar_type()) * scale;
}

}  // namespace troika
