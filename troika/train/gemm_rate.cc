#include <ATen/ATen.h>
#include <troika/device/device.h>
#include <troika/train/gemm_rate.h>
#include <troika/train/tensor_memory.h>

#include <algorithm>
#include <cmath>

namespace troika {
namespace {

// Products that take less say more of the start than of the machine: larger ones follow.
constexpr Seconds kTooShort(1e-3);
constexpr std::int64_t kLeastExtent = 512, kMostExtent = 8192;

class Product {
 public:
  Product(at::Device device, c10::ScalarType type, std::int64_t extent)
      : device_(device),
        operations_(2 * std::pow(static_cast<double>(extent), 3)),
        left_(at::ones({extent, extent}, at::TensorOptions(type).device(device))),
        right_(at::ones_like(left_)),
        product_(at::empty_like(left_)) {
    (void)run();  // brings threads and caches up
  }

  Seconds run() {
    const auto started = Clock::now();
    at::mm_out(product_, left_, right_);
    DeviceEvent::record(device_).wait(Deadline::in(Seconds(60)), "the end of a matrix product");
    return Clock::now() - started;
  }
  [[nodiscard]] double operations() const { return operations_; }

 private:
  at::Device device_;
  double operations_;
  at::Tensor left_, right_, product_;
};

}  // namespace

double measure_gemm_rate(at::Device device, c10::ScalarType type, Seconds budget) {
  std::int64_t extent = kLeastExtent;
  Product product(device, type, extent);
  double best = 0;
  const Deadline deadline = Deadline::in(budget);
  do {
    const Seconds taken = product.run();
    best = std::max(best, product.operations() / taken.count());
    if (taken < kTooShort && extent < kMostExtent) {
      extent *= 2;
      product = Product(device, type, extent);
    }
  } while (!deadline.passed());
  return best;
}

double gemm_rate_of_run(at::Device device, c10::ScalarType type) {
  const double rate = measure_gemm_rate(device, type, Seconds(0.02));
  reset_peak(device);
  return rate;
}

}  // namespace troika
