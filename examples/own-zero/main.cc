// A network that DataParallel cuts over the ranks (ZeRO): each keeps the optimiser's state of its
// own part of the parameters, and at stage 2 that part of the gradients. The argument is the stage:
//
//   troika launch --ranks 4 -- own_zero 2
//
// Its batch-norm has the statistics of the batches of all ranks.
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/nn/sync_batch_norm.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>
#include <troika/parallel/data_parallel/zero_redundancy_optimizer.h>

#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kSamples = 512;
constexpr std::size_t kBatch = 32;

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

// A hash of all parameters: runs that computed the same end with the same one.
std::string digest_of(const torch::nn::Module& module) {
  troika::ContentHash hash;
  for (const torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor value = parameter.detach().contiguous();
    hash.update(std::as_bytes(std::span(value.data_ptr<float>(), value.numel())));
  }
  return troika::hex(hash.digest());
}

void train(int stage) {
  const auto session = troika::Session::from_environment();
  torch::nn::Sequential net(torch::nn::Linear(8, 512), troika::SyncBatchNorm(512, session),
                            torch::nn::GELU(), torch::nn::Linear(512, 512), torch::nn::GELU(),
                            torch::nn::Linear(512, 1));
  troika::DataParallelOptions options;
  options.zero_stage = stage;
  troika::DataParallel model(net, session, options);
  model.seed_by_rank(1);  // dropout would draw other masks on each rank
  troika::ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(
      model, torch::optim::AdamWOptions(1e-3).weight_decay(0.01));
  troika::DistributedSampler sampler(kSamples, session);
  for (int epoch = 0; epoch < 8; ++epoch) {
    sampler.reset();
    double sum = 0, steps = 0;
    while (const auto indices = sampler.next(kBatch)) {
      const auto [x, y] = batch_of(*indices);
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(model(x), y);
      loss.backward();
      optimizer.clip_grad_norm(5.0);
      optimizer.step();
      sum += loss.item<double>();
      ++steps;
    }
    const double mean = session.average(sum / steps, "loss");
    std::size_t kept = 0;  // of the optimiser, two numbers a parameter that this rank updates
    for (const auto& shard : model.shards()) kept += 2 * shard.nbytes();
    if (session.rank() == 0) {
      std::cout << "epoch " << epoch << ": loss " << mean << ", " << kept
                << " bytes of optimiser state here" << std::endl;
    }
  }
  if (session.rank() == 0) std::cout << "parameters " << digest_of(*net) << std::endl;
  session.leave();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    torch::manual_seed(1);
    train(argc > 1 ? std::stoi(argv[1]) : 1);
  } catch (const troika::Error& error) {
    std::cerr << "own_zero: " << error.what() << std::endl;
    if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << std::endl;
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "own_zero: " << error.what() << std::endl;
    return 1;
  }
}
