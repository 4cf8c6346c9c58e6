#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/backend/checks.h"

namespace troika::test {
namespace {

TEST(Smoke, AddsAndComesBack) {
  const ExpectNoDeviceFault no_fault;
  const at::Tensor a = torch::randn({3, 4}, at::kDouble);
  const at::Tensor b = a.to(test_device());
  EXPECT_TRUE(at::equal((b + b).cpu(), a + a));
}

TEST(SmokeDeathTest, HostPointer) {
  const at::Tensor b = torch::randn({3, 4}, at::kDouble).to(test_device());
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile double*>(b.data_ptr())), "");
}

TEST(Smoke, Trains) {
  const ExpectNoDeviceFault no_fault;
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)),
                              torch::nn::BatchNorm2d(3), torch::nn::ReLU(), torch::nn::Flatten(),
                              torch::nn::Linear(48, 5));
  model->to(at::kDouble);
  auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  copy->to(test_device());
  const at::Tensor x = torch::randn({4, 2, 6, 6}, at::kDouble), y = torch::randint(0, 5, {4});
  torch::optim::AdamW a(model->parameters()), b(copy->parameters());
  for (int i = 0; i < 3; ++i) {
    a.zero_grad();
    b.zero_grad();
    auto l = torch::nn::functional::cross_entropy(model->forward(x), y);
    l.backward();
    a.step();
    auto m = torch::nn::functional::cross_entropy(copy->forward(x.to(test_device())),
                                                  y.to(test_device()));
    m.backward();
    b.step();
    EXPECT_NEAR(l.item<double>(), m.item<double>(), 1e-12);
  }
  auto p = model->buffers(), q = copy->buffers();
  for (std::size_t i = 0; i < p.size(); ++i)
    EXPECT_LT((p[i] - q[i].cpu()).abs().max().item<double>(), 1e-12);
}

}  // namespace
}  // namespace troika::test
