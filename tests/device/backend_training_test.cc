// Modules, autograd and optimisers of LibTorch on the test device, trained beside the CPU's.
#include <torch/script.h>
#include <torch/torch.h>

#include "device/backend/checks.h"
#include "device/backend/streams.h"

namespace troika::test {
namespace {

namespace nn = torch::nn;

class DeviceTraining : public TestDeviceFixture {
 protected:
  DeviceTraining() { torch::manual_seed(1); }
};

// Has no parameter with a gradient of zero, of which AdamW would divide noise by noise.
struct ConvolutionNet : nn::Cloneable<ConvolutionNet> {
  ConvolutionNet() { reset(); }
  void reset() override {
    layers = register_module(
        "layers",
        nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1).bias(false)),
                       nn::BatchNorm2d(4), nn::ReLU(), nn::MaxPool2d(2),
                       nn::Conv2d(nn::Conv2dOptions(4, 6, 3).bias(false)), nn::BatchNorm2d(6),
                       nn::ReLU(), nn::Dropout(0.2), nn::Flatten(), nn::Linear(6, 5)));
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};

struct AttentionNet : nn::Cloneable<AttentionNet> {
  AttentionNet() { reset(); }
  void reset() override {
    embedding = register_module("embedding", nn::Embedding(11, 8));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
    attention =
        register_module("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)));
    head = register_module("head", nn::Linear(8, 5));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor x = norm(embedding(tokens)).transpose(0, 1);
    return head(std::get<0>(attention(x, x, x)).mean(0));
  }
  nn::Embedding embedding{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::MultiheadAttention attention{nullptr};
  nn::Linear head{nullptr};
};

template <class Net, class Optimiser>
std::vector<double> train(const std::shared_ptr<Net>& net, Optimiser& optimiser,
                          const at::Tensor& input, const at::Tensor& target) {
  torch::manual_seed(2);
  std::vector<double> losses;
  for (int step = 0; step < 4; ++step) {
    optimiser.zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(net->forward(input), target);
    loss.backward();
    nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimiser.step();
    losses.push_back(loss.template item<double>());
  }
  return losses;
}

void expect_same(const std::vector<at::Tensor>& device, const std::vector<at::Tensor>& cpu) {
  ASSERT_EQ(device.size(), cpu.size());
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_EQ(device[i].device(), test_device());
    EXPECT_LT((device[i].cpu() - cpu[i]).abs().max().item<double>(), 1e-12) << i;
  }
}

// Parameters, and running statistics, are the CPU's after some steps.
template <class Net, class Options>
void train_beside_the_cpu(const at::Tensor& input, const Options& options) {
  using Optimiser = typename Options::Optimiser;
  const auto cpu = std::make_shared<Net>();
  cpu->to(at::kDouble);
  const auto device = std::dynamic_pointer_cast<Net>(cpu->clone());
  device->to(test_device());
  Optimiser cpu_optimiser(cpu->parameters(), options.options);
  Optimiser device_optimiser(device->parameters(), options.options);
  const at::Tensor target = torch::randint(5, {input.size(0)});
  const auto losses = train(cpu, cpu_optimiser, input, target);
  const auto on_device =
      train(device, device_optimiser, input.to(test_device()), target.to(test_device()));
  for (std::size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(on_device[step], losses[step], 1e-12);
  }
  expect_same(device->parameters(), cpu->parameters());
  expect_same(device->buffers(), cpu->buffers());
}

struct Sgd {
  using Optimiser = torch::optim::SGD;
  torch::optim::SGDOptions options = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1);
};
struct AdamW {
  using Optimiser = torch::optim::AdamW;
  torch::optim::AdamWOptions options{0.01};
};

TEST_F(DeviceTraining, ConvolutionsWithRunningStatistics) {
  train_beside_the_cpu<ConvolutionNet>(torch::randn({4, 2, 6, 6}, at::kDouble), Sgd());
  train_beside_the_cpu<ConvolutionNet>(torch::randn({4, 2, 6, 6}, at::kDouble), AdamW());
}

TEST_F(DeviceTraining, Attention) {
  train_beside_the_cpu<AttentionNet>(torch::randint(11, {3, 7}), Sgd());
}

TEST_F(DeviceTraining, RunningStatisticsInEvaluation) {
  nn::BatchNorm1d cpu(3);
  cpu->to(at::kDouble);
  const at::Tensor x = torch::randn({8, 3}, at::kDouble);
  cpu(x);
  auto device = std::dynamic_pointer_cast<nn::BatchNorm1dImpl>(cpu->clone());
  device->to(test_device());
  cpu->eval();
  device->eval();
  EXPECT_LT((device->forward(x.to(test_device())).cpu() - cpu(x)).abs().max().item<double>(),
            1e-13);
  EXPECT_EQ(device->num_batches_tracked.item<std::int64_t>(), 1);
  EXPECT_TRUE(at::equal(device->running_var.cpu(), cpu->running_var));
}

// A step reads the host once, for its loss, and never waits for all streams.
TEST_F(DeviceTraining, TellsWhatAStepWaitsFor) {
  const ForbidDeviceSynchronization forbidden;
  nn::Linear model(4, 2);
  model->to(test_device());
  torch::optim::SGD optimiser(model->parameters(), 0.1);
  const at::Tensor input =
      torch::randn({3, 4}).pin_memory().to(test_device(), /*non_blocking=*/true);
  const DeviceCounters before = device_counters();
  const at::Tensor loss = model(input).square().mean();
  loss.backward();
  optimiser.step();
  EXPECT_EQ((device_counters() - before).host_waits, 0);
  static_cast<void>(loss.item<float>());
  EXPECT_EQ((device_counters() - before).host_reads, 1);
  EXPECT_GT((device_counters() - before).kernels, 5);
}

TEST_F(DeviceTraining, RunsHooksOnTheDevicesThread) {
  std::thread::id hook;
  const at::Tensor weight =
      torch::ones({2}, at::TensorOptions().device(test_device()).requires_grad(true));
  weight.register_hook([&](const at::Tensor& /*gradient*/) { hook = std::this_thread::get_id(); });
  weight.sum().backward();
  EXPECT_NE(hook, std::this_thread::get_id());
}

// Autograd runs each backward operator on the stream of its forward, and waits where the stream
// changes.
TEST_F(DeviceTraining, DifferentiatesAcrossStreams) {
  const at::Tensor weight =
      torch::ones({2}, at::TensorOptions(at::kDouble).device(test_device()).requires_grad(true));
  const c10::Stream other = other_stream();
  at::Tensor middle = weight * 3;
  wait(own_stream(), other);
  at::Tensor value;
  {
    const c10::StreamGuard guard(other);
    value = middle * middle;
  }
  wait(other, own_stream());
  middle.record_stream(other);
  value.sum().backward();
  EXPECT_EQ(weight.grad().sum().item<double>(), 36);
}

TEST_F(DeviceTraining, CatchesAGradientThatIsTakenTooEarly) {
  const at::Tensor weight =
      torch::ones({2}, at::TensorOptions(at::kDouble).device(test_device()).requires_grad(true));
  weight.square().sum().backward();
  {
    const c10::StreamGuard guard(other_stream());
    EXPECT_THROW(weight.grad() * 2, c10::Error);
  }
  EXPECT_EQ(take_device_faults().size(), 1);
}

TEST_F(DeviceTraining, ThrowsAnErrorOfTheDevicesThreadFromBackward) {
  const at::Tensor weight =
      torch::ones({2}, at::TensorOptions(at::kDouble).device(test_device()).requires_grad(true));
  weight.register_hook([](const at::Tensor& gradient) {
    const c10::StreamGuard guard(other_stream());
    return gradient * 2;
  });
  const at::Tensor loss = weight.square().sum();
  EXPECT_THROW(loss.backward(), c10::Error);
  EXPECT_EQ(take_device_faults().size(), 1);
}

TEST_F(DeviceTraining, TorchScript) {
  torch::jit::Module module("scaled");
  module.register_parameter("scale", torch::full({1}, 3.0, at::kDouble), false);
  module.define("def forward(self, x):\n  return torch.relu(x @ x.t()) * self.scale\n");
  const at::Tensor x = torch::randn({3, 3}, at::kDouble);
  const at::Tensor expected = module.forward({x}).toTensor();
  module.to(test_device());
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_TRUE(at::allclose(module.forward({x.to(test_device())}).toTensor().cpu(), expected));
  }
}

TEST_F(DeviceTraining, SavesItsGenerator) {
  const at::Generator& generator = at::globalContext().defaultGenerator(test_device());
  const auto options = at::TensorOptions(at::kDouble).device(test_device());
  at::Tensor state;
  {
    at::Generator own = generator;
    const std::lock_guard lock(own.mutex());
    state = own.get_state();
  }
  const at::Tensor first = torch::randn({4}, options).cpu();
  static_cast<void>(torch::randn({4}, at::kDouble));  // the CPU draws from its own
  EXPECT_FALSE(at::equal(torch::randn({4}, options).cpu(), first));
  at::Generator(generator).set_state(state);
  EXPECT_TRUE(at::equal(torch::randn({4}, options).cpu(), first));
}

}  // namespace
}  // namespace troika::test
