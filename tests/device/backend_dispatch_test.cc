// Which kernel of an operator the test device runs: the composite one where there is one, for
// operators of a library of their own, and the CPU's for LibTorch's only.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "device/backend/checks.h"
#include "device/backend/streams.h"

namespace troika::test {
namespace {

using testing::HasSubstr;
using testing::Throws;

int composite_calls = 0;
int cpu_calls = 0;

at::Tensor twice_composite(const at::Tensor& x) {
  ++composite_calls;
  return x * 2;
}

at::Tensor twice_on_cpu(const at::Tensor& x) {
  ++cpu_calls;
  return x + x;
}

void add_composite(at::Tensor& to, const at::Tensor& x) {
  to.add_(x);
}

TORCH_LIBRARY(troika_device_test, m) {
  m.def("twice(Tensor x) -> Tensor");
  m.def("thrice(Tensor x) -> Tensor");
  m.def("accumulate(Tensor(a!) to, Tensor x) -> ()");
}
TORCH_LIBRARY_IMPL(troika_device_test, CompositeExplicitAutograd, m) {
  m.impl("twice", &twice_composite);
  m.impl("accumulate", &add_composite);
}
TORCH_LIBRARY_IMPL(troika_device_test, CPU, m) {
  m.impl("twice", &twice_on_cpu);
  m.impl("thrice", [](const at::Tensor& x) { return at::Tensor(x * 3); });
}

template <class Signature>
auto find(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("troika_device_test::") + name).c_str(), "")
      .typed<Signature>();
}

class DeviceDispatch : public TestDeviceFixture {
 protected:
  const at::Tensor ones_ = at::ones({3}, at::TensorOptions(at::kDouble).device(test_device()));
};

TEST_F(DeviceDispatch, RunsTheCompositeKernelOfALibrary) {
  const auto twice = find<at::Tensor(const at::Tensor&)>("twice");
  composite_calls = cpu_calls = 0;
  const at::Tensor result = twice.call(ones_);
  EXPECT_EQ(composite_calls, 1);
  EXPECT_EQ(cpu_calls, 0);
  EXPECT_EQ(result.sum().item<double>(), 6);
  static_cast<void>(twice.call(at::ones({3})));
  EXPECT_EQ(cpu_calls, 1);
  find<void(at::Tensor&, const at::Tensor&)>("accumulate")
      .call(const_cast<at::Tensor&>(ones_), result);
  EXPECT_EQ(ones_.sum().item<double>(), 9);
}

TEST_F(DeviceDispatch, RefusesAnOperatorOfALibraryWithoutACompositeKernel) {
  EXPECT_THAT([&] { find<at::Tensor(const at::Tensor&)>("thrice").call(ones_); },
              ThrowsMessage<c10::Error>(HasSubstr("thrice has no kernel for the test device")));
}

TEST_F(DeviceDispatch, RefusesTensorsOfSeveralDevices) {
  const at::Tensor there = ones_.to(test_device(1));
  EXPECT_THAT([&] { return at::add(ones_, there); },
              ThrowsMessage<c10::Error>(HasSubstr("same device")));
  EXPECT_THAT(
      [&] {
        return at::mm(ones_.view({1, 3}), at::ones({3, 1}, at::kDouble));
      },
      ThrowsMessage<c10::Error>(HasSubstr("same device")));
  EXPECT_EQ((ones_ + at::ones({}, at::kDouble)).sum().item<double>(),
            6);  // a number is at home anywhere
  EXPECT_EQ(ones_.index({at::tensor({0, 2})}).sum().item<double>(), 2);  // and so are indices
}

TEST_F(DeviceDispatch, ViewsShareMemoryAndVersion) {
  const at::Tensor view = ones_.unfold(0, 2, 1).select(0, 1).detach();
  EXPECT_TRUE(view.is_alias_of(ones_));
  const auto version = ones_._version();
  ones_.unfold(0, 2, 1).select(0, 1).fill_(5);
  EXPECT_EQ(ones_.sum().item<double>(), 11);
  EXPECT_GT(ones_._version(), version);
}

TEST_F(DeviceDispatch, KnowsWhichListsAreWritten) {
  const std::vector<at::Tensor> parameters{ones_.clone(), ones_.clone()};
  const std::vector<at::Tensor> gradients{ones_.clone(), ones_.clone()};
  at::_fused_sgd_(parameters, gradients, {}, 0, 0, 0.5, 0, false, false, true);
  const c10::StreamGuard guard(other_stream());
  EXPECT_THAT([&] { return parameters[1] + 1; },
              ThrowsMessage<c10::Error>(HasSubstr("aten::_fused_sgd_ on stream 0 writes")));
  EXPECT_EQ(take_device_faults().size(), 1);
}

TEST_F(DeviceDispatch, WorksInInferenceMode) {
  const c10::InferenceMode inference;
  at::Tensor x = ones_ * 3;
  x.view({3, 1}).add_(1);
  EXPECT_EQ(x.sum().item<double>(), 12);
}

class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_dtype(at::kHPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kHPU, true);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kHPU, false);
    at::autocast::clear_cache();
  }
};

TEST_F(DeviceDispatch, CastsAutomatically) {
  const at::Tensor a = at::ones({2, 2}, at::TensorOptions().device(test_device())).requires_grad_();
  {
    const Autocast autocast;
    const at::Tensor product = at::mm(a, a);
    EXPECT_EQ(product.scalar_type(), at::kBFloat16);
    EXPECT_EQ(product.softmax(0).scalar_type(), at::kFloat);
    EXPECT_EQ((product + a).scalar_type(), at::kFloat);
    product.sum().backward();
  }
  EXPECT_EQ(a.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(a.grad().sum().item<double>(), 16);
}

}  // namespace
}  // namespace troika::test
