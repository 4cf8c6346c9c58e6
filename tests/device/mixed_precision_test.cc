// Autocast and GradScaler on a device: the CPU's numbers, and one wait of the host a step.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <troika/nn/autocast.h>
#include <troika/parallel/data_parallel/grad_scaler.h>

#include <limits>
#include <optional>

#include "device/backend/checks.h"

namespace troika::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::ScalarType dtype_of_product(at::Device device) {
  const at::Tensor x = at::ones({2, 2}).to(device);
  return at::mm(x, x).scalar_type();
}

TEST(MixedPrecisionOnDevice, CastsOnTheDeviceThatItIsGiven) {
  const ExpectNoDeviceFault no_fault;
  const at::Device device = test_device();
  {
    const Autocast autocast(at::kHalf, at::ones({1}).to(device));
    EXPECT_EQ(dtype_of_product(device), at::kHalf);
    EXPECT_EQ(dtype_of_product(at::kCPU), at::kFloat);
    const Autocast both(at::kBFloat16, at::kCPU);
    EXPECT_EQ(dtype_of_product(device), at::kHalf);
    EXPECT_EQ(dtype_of_product(at::kCPU), at::kBFloat16);
    const Autocast off = Autocast::disabled(device.type());
    EXPECT_EQ(dtype_of_product(device), at::kFloat);
  }
  EXPECT_EQ(dtype_of_product(device), at::kFloat);
}

struct Loop {
  explicit Loop(at::Device where) : device(where), scaler(Session::on(Group())) {
    torch::manual_seed(1);
    net = torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::Tanh(),
                                torch::nn::Linear(16, 2));
    net->to(device);
    optimizer.emplace(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  void backward(at::ScalarType dtype, int step, float factor) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
    const at::Tensor x = torch::randn({4, 8}, generator).to(device);
    const at::Tensor y = torch::randn({4, 2}, generator).to(device);
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast(dtype, x);
      loss = (net->forward(x) - y).square().mean();
    }
    scaler.scale(loss * factor).backward();
  }
  at::Device device;
  torch::nn::Sequential net{nullptr};
  std::optional<torch::optim::SGD> optimizer;
  GradScaler scaler;
};

TEST(MixedPrecisionOnDevice, GivesTheNumbersOfTheCpu) {
  const ExpectNoDeviceFault no_fault;
  const ForbidDeviceSynchronization no_synchronization;
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    Loop here(at::kCPU), there(test_device());
    for (int step = 0; step < 4; ++step) {
      for (Loop* loop : {&here, &there}) {
        loop->backward(dtype, step, step == 1 ? kInfinity : 1);
        loop->scaler.unscale_(*loop->optimizer);
        EXPECT_EQ(loop->scaler.step(*loop->optimizer), step != 1);
        loop->scaler.update();
      }
      EXPECT_EQ(here.scaler.state(), there.scaler.state());
    }
    const auto ours = there.net->parameters(), theirs = here.net->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(torch::allclose(ours[i].cpu(), theirs[i], 1e-5, 1e-6)) << i;
    }
  }
}

TEST(MixedPrecisionOnDevice, WaitsForTheDeviceOnceAStep) {
  const ExpectNoDeviceFault no_fault;
  const ForbidDeviceSynchronization no_synchronization;
  Loop loop(test_device());
  for (const float factor : {1.0F, kInfinity}) {
    loop.backward(at::kHalf, 1, factor);
    const DeviceCounters before = device_counters();
    loop.scaler.unscale_(*loop.optimizer);
    EXPECT_EQ((device_counters() - before).host_waits, 0);
    loop.scaler.step(*loop.optimizer);
    loop.scaler.update();
    EXPECT_EQ((device_counters() - before).host_reads, 1);
    EXPECT_EQ((device_counters() - before).host_waits, 1);
  }
}

}  // namespace
}  // namespace troika::test
