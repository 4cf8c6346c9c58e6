// Modules of one's own on the test device: gradients, parameters and running statistics are those
// of one process of the host with all of the data, and no wait is missing.
#include <troika/nn/sync_batch_norm.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/zero_redundancy_optimizer.h>

#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "ranks/own_module/own_module.h"

namespace troika::test {
namespace {

using ::testing::HasSubstr;

at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.to(test_device());
}

// A convolution and a norm: what a device's fallback would get wrong in silence.
template <class Norm>
struct NetImpl : torch::nn::Module {
  explicit NetImpl(Norm the_norm) {
    torch::manual_seed(1);
    conv = register_module("conv", torch::nn::Conv2d(2, 4, 3));
    norm = register_module("norm", std::move(the_norm));
    fc = register_module("fc", torch::nn::Linear(4, 3));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc(torch::tanh(norm(conv(x))).mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  Norm norm{nullptr};
  torch::nn::Linear fc{nullptr};
};

// The reference of all tests: one process of the host, three steps of SGD with momentum.
template <class Module>
std::shared_ptr<Module> trained_alone(std::shared_ptr<Module> module, std::int64_t samples,
                                      at::IntArrayRef shape) {
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Samples all(samples, step, shape);
    optimizer.zero_grad();
    squared_error(module->forward(all.x), all.y).backward();
    optimizer.step();
  }
  return module;
}

void expect_values(const torch::nn::Module& found, const torch::nn::Module& expected) {
  const auto of_host = [](const torch::OrderedDict<std::string, torch::Tensor>& named) {
    std::vector<torch::Tensor> tensors;
    for (const auto& each : named) tensors.push_back(each.value().detach().cpu());
    return tensors;
  };
  const auto near = [&](const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].allclose(b[i], 1e-11, 1e-12)) << i;
  };
  near(of_host(found.named_parameters()), of_host(expected.named_parameters()));
  near(of_host(found.named_buffers()), of_host(expected.named_buffers()));
}

RANK_TEST(DeviceDataParallel, HasTheGradientsOfOneProcess, 1, 2, 3) {
  const ExpectNoDeviceFault no_fault;
  const ForbidDeviceSynchronization forbidden;
  const auto module = std::make_shared<MlpImpl>();
  module->to(test_device());
  DataParallel model(module, session_of(rank), small_buckets());
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Samples own = Samples(4 * rank.size(), step).slice(4 * rank.index(), 4);
    optimizer.zero_grad();
    squared_error(model(on_device(own.x)), on_device(own.y)).backward();
    optimizer.step();
  }
  expect_values(*module, *trained_alone(std::make_shared<MlpImpl>(), 4 * rank.size(), {6}));
}

RANK_TEST(DeviceDataParallel, ShardsTheOptimiser, 2, 3) {
  for (const int stage : {1, 2}) {
    const ExpectNoDeviceFault no_fault;
    const auto module = std::make_shared<MlpImpl>();
    module->to(test_device());
    DataParallelOptions options = small_buckets();
    options.zero_stage = stage;
    DataParallel model(module, session_of(rank), options);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
        model, torch::optim::SGDOptions(0.1).momentum(0.9));
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Samples own = Samples(4 * rank.size(), step).slice(4 * rank.index(), 4);
      optimizer.zero_grad();
      squared_error(model(on_device(own.x)), on_device(own.y)).backward();
      optimizer.step();
    }
    expect_values(*module, *trained_alone(std::make_shared<MlpImpl>(), 4 * rank.size(), {6}));
  }
}

RANK_TEST(DeviceDataParallel, AddsUpWithoutSync, 2) {
  const ExpectNoDeviceFault no_fault;
  const auto module = std::make_shared<MlpImpl>(), alone = std::make_shared<MlpImpl>();
  module->to(test_device());
  DataParallel model(module, session_of(rank), small_buckets());
  const Samples all(8), own = all.slice(4 * rank.index(), 4);
  const auto pass = [&](std::int64_t begin) {
    const Samples half = own.slice(begin, 2);
    (squared_error(model(on_device(half.x)), on_device(half.y)) / 2).backward();
  };
  {
    const auto no_sync = model.no_sync();
    pass(0);
  }
  pass(2);
  squared_error(alone->forward(all.x), all.y).backward();
  const auto found = module->parameters(), expected = alone->parameters();
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].grad().cpu().allclose(expected[i].grad(), 1e-11, 1e-12)) << i;
  }
}

// Hooks and statistics run on autograd's thread of the device.
RANK_TEST(DeviceDataParallel, SynchronisesBatchNorm, 1, 2) {
  const ExpectNoDeviceFault no_fault;
  const Session session = session_of(rank);
  const auto module = std::make_shared<NetImpl<SyncBatchNorm>>(SyncBatchNorm(4, session));
  module->to(test_device());
  DataParallel model(module, session, small_buckets());
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Samples own = Samples(4 * rank.size(), step, {2, 5, 5}).slice(4 * rank.index(), 4);
    optimizer.zero_grad();
    squared_error(model(on_device(own.x)), on_device(own.y)).backward();
    optimizer.step();
  }
  const auto alone = std::make_shared<NetImpl<torch::nn::BatchNorm2d>>(torch::nn::BatchNorm2d(4));
  expect_values(*module, *trained_alone(alone, 4 * rank.size(), {2, 5, 5}));
}

RANK_TEST(DeviceDataParallel, RefusesAModuleOnTwoDevices, 1) {
  const auto module = std::make_shared<MlpImpl>();
  module->second->to(test_device());
  try {
    DataParallel model(module, session_of(rank));
    ADD_FAILURE() << "it was taken";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'second.weight' is on hpu:0, and 'first.weight' on cpu"));
  }
}

}  // namespace
}  // namespace troika::test
