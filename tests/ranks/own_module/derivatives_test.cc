// Losses on derivatives of an own module's outputs, as of forces and of the residual of an
// equation: the gradients of one process that has all samples.
#include "ranks/own_module/own_pipeline.h"
#include "ranks/own_module/recorded.h"

namespace troika::test {
namespace {

torch::Tensor derivative(const torch::Tensor& of, const torch::Tensor& by) {
  return torch::autograd::grad({of.sum()}, {by}, {}, std::nullopt, /*create_graph=*/true)[0];
}

// An energy, its forces, and how these bend.
template <class Model>
torch::Tensor loss_on_derivatives(Model& model, const Samples& samples) {
  const torch::Tensor x = samples.x.clone().requires_grad_(true);
  const torch::Tensor energy = model.forward(x).select(1, 0);
  const torch::Tensor forces = -derivative(energy, x);
  const torch::Tensor bend = derivative(forces.select(1, 2), x).select(1, 4);
  return squared_error(energy, samples.y.select(1, 0)) +
         squared_error(forces.narrow(1, 0, 3), samples.y) +
         squared_error(bend + energy, samples.y.select(1, 2));
}

RANK_TEST(OwnModule, LossesOnDerivatives, 1, 2, 3) {
  for (const DataParallelOptions& options : {DataParallelOptions(), small_buckets()}) {
    Mlp module, alone;
    DataParallel model(module, session_of(rank), options);
    const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD optimizer(module->parameters(), sgd), reference(alone->parameters(), sgd);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Samples all(12, step);
      optimizer.zero_grad();
      loss_on_derivatives(model, all.slice(rank)).backward();
      reference.zero_grad();
      loss_on_derivatives(*alone, all).backward();
      expect_same_gradients(*module, *alone);
      optimizer.step();
      reference.step();
    }
    expect_same_values(*module, *alone);
  }
}

// Gives its first output, and second derivatives of it, also where nothing is trained.
struct BentImpl : torch::nn::Module {
  BentImpl() { net = register_module("net", Mlp()); }
  torch::Tensor forward(const torch::Tensor& given) {
    const bool was_on = torch::GradMode::is_enabled();
    const torch::AutoGradMode on(true);
    const torch::Tensor x = given.detach().requires_grad_(true);
    const torch::Tensor energy = net->forward(x).select(1, 0);
    const torch::Tensor slope = derivative(energy, x).select(1, 2);
    const torch::Tensor results =
        torch::stack({energy, slope, derivative(slope, x).select(1, 4)}, 1);
    return was_on ? results : results.detach();
  }
  Mlp net{nullptr};
};
TORCH_MODULE(Bent);

RANK_TEST(ModulePipeline, LossesOnDerivativesAtEveryStage, 1, 2) {
  const PipelineGroups groups = groups_over(rank, 1);
  for (const int stage : {0, 1, 2, 3}) {
    ModulePipelineOptions options = doubles_in("1f1b", 2);
    options.zero_stage = stage;
    ModulePipeline model({unit("bent", [] { return Bent(); }, {3})}, loss_sum, groups, options);
    Bent alone;
    const Samples all(10), own = slice_of(all, model);
    const torch::Tensor loss = loss_sum(alone(all.x), all.y) / all.x.size(0);
    loss.backward();
    EXPECT_NEAR(model.evaluate(own.x, own.y), loss.item<double>(), 1e-12) << stage;
    EXPECT_NEAR(model.train(own.x, own.y), loss.item<double>(), 1e-12) << stage;
    const auto theirs = alone->named_parameters();
    for (const ParameterShard& shard : model.shards()) {
      const torch::Tensor& parameter = theirs[shard.name.substr(std::string("bent.").size())];
      if (!parameter.grad().defined()) continue;  // biases behind what is differentiated
      const torch::Tensor wanted =
          parameter.grad().reshape({-1}).narrow(0, shard.begin, shard.tensor.numel());
      EXPECT_LE(largest(shard.tensor.grad() - wanted), 1e-12 * largest(wanted) + 1e-14)
          << stage << ", " << shard.name;
    }
  }
}

}  // namespace
}  // namespace troika::test
