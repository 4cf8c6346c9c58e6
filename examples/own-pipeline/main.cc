// A network of your own, cut into units divided among pipeline ranks, with its own loss and
// torch::optim. The arguments are the number of pipeline ranks, the schedule and the stage of ZeRO
// over the data ranks:
//
//   troika launch --ranks 4 -- own_pipeline 2 zb-v 1
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>
#include <troika/parallel/pipeline/module_pipeline.h>

#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kSamples = 512;
constexpr std::size_t kBatch = 64;  // of a data rank
constexpr std::int64_t kWidth = 64;

// A residual block; any module whose forward() takes a tensor and gives one is a unit.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 2 * kWidth))),
        down(register_module("down", torch::nn::Linear(2 * kWidth, kWidth))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

// A rank makes the modules of its own units alone, so each has a seed of its own.
std::vector<troika::NamedUnit> units() {
  std::vector<troika::NamedUnit> row = {troika::unit(
      "stem",
      [] {
        torch::manual_seed(1);
        return torch::nn::Linear(8, kWidth);
      },
      {kWidth}, /*cost=*/0.2)};
  for (int i = 0; i < 4; ++i) {
    row.push_back(troika::unit("block" + std::to_string(i),
                               [i] {
                                 torch::manual_seed(static_cast<std::uint64_t>(2 + i));
                                 return Block();
                               },
                               {kWidth}));
  }
  row.push_back(troika::unit(
      "head",
      [] {
        torch::manual_seed(9);
        return torch::nn::Linear(kWidth, 1);
      },
      {1}, /*cost=*/0.2));
  return row;
}

torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target, at::Reduction::Sum);  // the sum: ranks divide it once
}

// y = sum of sin(x), a function of the sample's number.
std::pair<torch::Tensor, torch::Tensor> batch_of(const std::vector<std::size_t>& indices) {
  std::vector<torch::Tensor> inputs;
  for (const std::size_t index : indices) {
    auto generator = at::detail::createCPUGenerator(index);
    inputs.push_back(torch::rand({8}, generator) * 6);
  }
  const torch::Tensor x = torch::stack(inputs);
  return {x, x.sin().sum(1, true)};
}

// A hash of the parameters of each rank's units: runs that computed the same end with the same
// ones.
std::string digests_of(troika::ModulePipeline& model, const troika::Session& session) {
  troika::ContentHash hash;
  model.each_value([&](const std::string& name, const torch::Tensor& tensor) {
    const torch::Tensor value = tensor.detach().contiguous();
    hash.update(name).update(std::as_bytes(std::span(value.data_ptr<float>(), value.numel())));
  });
  std::string digests;
  for (const auto& digest : session.gather(troika::hex(hash.digest()), "digests")) {
    digests += " " + digest;
  }
  return digests;
}

void train(const std::vector<std::string>& arguments) {
  troika::ModulePipelineOptions options;
  if (!arguments.empty()) options.pipeline = std::stoi(arguments[0]);
  if (arguments.size() > 1) options.schedule = arguments[1];
  if (arguments.size() > 2) options.zero_stage = std::stoi(arguments[2]);
  options.microbatches = 4;

  const auto session = troika::Session::from_environment();
  troika::ModulePipeline model(units(), loss, session, options);
  session.seed_by_rank(1);  // dropout would draw other masks on each rank
  torch::optim::AdamW optimizer(model.parameters(), 1e-3);
  // Ranks of one pipeline see the same samples.
  troika::DistributedSampler sampler(kSamples, model.data_rank(), model.data_ranks());
  for (int epoch = 0; epoch < 8; ++epoch) {
    sampler.reset();
    double sum = 0;
    int steps = 0;
    while (const auto indices = sampler.next(kBatch)) {
      const auto [x, y] = batch_of(*indices);
      sum += model.train(x, y);
      model.clip_grad_norm(1.0);
      optimizer.step();
      ++steps;
    }
    if (session.rank() == 0) {
      std::cout << "epoch " << epoch << ": loss " << sum / steps << ", "
                << model.unit_names().size() << " units and " << model.memory_bytes()
                << " bytes here" << std::endl;
    }
  }
  const std::string digests = digests_of(model, session);
  if (session.rank() == 0) std::cout << "parameters" << digests << std::endl;
  session.leave();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const troika::Error& error) {
    std::cerr << "own_pipeline: " << error.what() << std::endl;
    if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << std::endl;
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "own_pipeline: " << error.what() << std::endl;
    return 1;
  }
}
