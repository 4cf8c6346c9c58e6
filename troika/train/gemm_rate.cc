#include <ATen/ATen.h>
#include <troika/train/gemm_rate.h>

#include <algorithm>

namespace troika {

double measure_gemm_rate(c10::ScalarType type, Seconds budget) {
  constexpr std::int64_t kExtent = 512;
  constexpr double kOperations = 2.0 * kExtent * kExtent * kExtent;
  const at::Tensor left = at::ones({kExtent, kExtent}, type);
  const at::Tensor right = at::ones({kExtent, kExtent}, type);
  at::Tensor product = at::mm(left, right);  // brings threads and caches up
  double best = 0;
  const Deadline deadline = Deadline::in(budget);
  do {
    const auto started = Clock::now();
    at::mm_out(product, left, right);
    best = std::max(best, kOperations / Seconds(Clock::now() - started).count());
  } while (!deadline.passed());
  return best;
}

}  // namespace troika
