#include <troika/base/vectorize.h>
#include <troika/optim/square_sum.h>

#include <array>

namespace troika {
namespace {

constexpr int kLanes = 16;
using Lanes = std::array<double, kLanes>;

template <typename T>
inline void accumulate(const T* values, std::int64_t count, Lanes& sums) {
  Lanes lanes{};  // a copy that needs no memory inside the loop
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[static_cast<std::size_t>(lane)] += value * value;
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    const double value = static_cast<double>(values[i]);
    lanes[static_cast<std::size_t>(lane)] += value * value;
  }
  sums = lanes;
}

}  // namespace

template <typename T>
double square_sum(const T* values, std::int64_t count) {
  Lanes sums;
  vectorized([&] { accumulate(values, count, sums); });
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

template double square_sum(const float*, std::int64_t);
template double square_sum(const double*, std::int64_t);

}  // namespace troika
