// Modules of one's own on a device: gradients, parameters and running statistics are those
// of one process of the host with all of the data, and no wait is missing.
#include <troika/nn/autocast.h>
#include <troika/nn/sync_batch_norm.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/grad_scaler.h>
#include <troika/parallel/data_parallel/zero_redundancy_optimizer.h>

#include "device/under_test.h"
#include "ranks/own_module/own_module.h"

namespace troika::test {
namespace {

using ::testing::HasSubstr;

at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.to(device_under_test());
}

// Three steps on this rank's part of the samples.
template <class Model, class Optimizer>
void take_steps(Model& model, Optimizer& optimizer, const Rank& rank, at::IntArrayRef shape) {
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Samples own = Samples(4 * rank.size(), step, shape).slice(4 * rank.index(), 4);
    optimizer.zero_grad();
    squared_error(model(on_device(own.x)), on_device(own.y)).backward();
    optimizer.step();
  }
}

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
  const DeviceWatch watch;
  const auto module = std::make_shared<MlpImpl>();
  module->to(device_under_test());
  DataParallel model(module, session_of(rank), small_buckets());
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  take_steps(model, optimizer, rank, {6});
  expect_values(*module, *trained_alone(std::make_shared<MlpImpl>(), 4 * rank.size(), {6}));
}

RANK_TEST(DeviceDataParallel, ShardsTheOptimiser, 2, 3) {
  for (const int stage : {1, 2}) {
    const DeviceWatch watch;
    const auto module = std::make_shared<MlpImpl>();
    module->to(device_under_test());
    DataParallelOptions options = small_buckets();
    options.zero_stage = stage;
    DataParallel model(module, session_of(rank), options);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
        model, torch::optim::SGDOptions(0.1).momentum(0.9));
    take_steps(model, optimizer, rank, {6});
    expect_values(*module, *trained_alone(std::make_shared<MlpImpl>(), 4 * rank.size(), {6}));
  }
}

RANK_TEST(DeviceDataParallel, AddsUpWithoutSync, 2) {
  const DeviceWatch watch;
  const auto module = std::make_shared<MlpImpl>(), alone = std::make_shared<MlpImpl>();
  module->to(device_under_test());
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
  const DeviceWatch watch;
  const Session session = session_of(rank);
  const auto module = std::make_shared<NormedNetImpl<SyncBatchNorm>>(SyncBatchNorm(4, session));
  module->to(device_under_test());
  DataParallel model(module, session, small_buckets());
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  take_steps(model, optimizer, rank, {2, 5, 5});
  const auto alone =
      std::make_shared<NormedNetImpl<torch::nn::BatchNorm2d>>(torch::nn::BatchNorm2d(4));
  expect_values(*module, *trained_alone(alone, 4 * rank.size(), {2, 5, 5}));
}

RANK_TEST(DeviceDataParallel, RefusesAModuleOnTwoDevices, 1) {
  const DeviceWatch watch;
  const auto module = std::make_shared<MlpImpl>();
  module->second->to(device_under_test());
  try {
    DataParallel model(module, session_of(rank));
    ADD_FAILURE() << "it was taken";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'second.weight' is on " + device_under_test().str() +
                                        ", and 'first.weight' on cpu"));
    EXPECT_THAT(error.hint(), HasSubstr("call module->to(device) before DataParallel is made"));
  }
}

// Mixed precision on devices: ranks that overflow alone skip together, at every stage of ZeRO, and
// with the scale that the host's ranks come to.
RANK_TEST(DeviceDataParallel, RanksThatOverflowAloneSkipTogether, 2, 3) {
  const DeviceWatch watch;
  const Session session = session_of(rank);
  for (const int stage : {0, 1, 2}) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 2));
    net->to(device_under_test());
    DataParallelOptions options = small_buckets();
    options.zero_stage = stage;
    DataParallel model(net, session, options);
    ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(model, torch::optim::AdamWOptions(0.01));
    GradScaler scaler(model, {.initial_scale = 1024, .growth_interval = 2});
    std::vector<double> scales;
    torch::Tensor before = net->parameters()[0].detach().cpu();
    for (std::uint64_t step = 0; step < 5; ++step) {
      const bool overflows = (step == 1 || step == 2) && rank.index() == rank.size() - 1;
      const Samples own(4, 10 * step + static_cast<std::uint64_t>(rank.index()), {8}, 2);
      net->zero_grad();
      torch::Tensor loss;
      {
        const torch::Tensor x = on_device(own.x.to(torch::kFloat));
        const Autocast autocast(at::kHalf, x);
        loss = squared_error(model(x), on_device(own.y.to(torch::kFloat)));
      }
      // Finite in fp32, and past the largest fp16 once it is scaled.
      scaler.scale(loss * (overflows ? 1e30F : 1.0F)).backward();
      EXPECT_EQ(scaler.step(optimizer), step != 1 && step != 2) << "stage " << stage;
      scaler.update();
      scales.push_back(scaler.scale_value());
      const torch::Tensor after = net->parameters()[0].detach().cpu();
      EXPECT_EQ(torch::equal(before, after), step == 1 || step == 2) << step;
      before = after;
    }
    EXPECT_EQ(scales, (std::vector<double>{1024, 512, 256, 256, 512})) << "stage " << stage;
  }
}

}  // namespace
}  // namespace troika::test
