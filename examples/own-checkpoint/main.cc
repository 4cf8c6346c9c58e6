// A network of your own that goes on where it was killed. Start it, kill it with kill -9, start it
// again: it ends with the same parameters as one that was never stopped. With another number of
// ranks, or another stage of ZeRO, it goes on as well. The argument is the stage:
//
//   troika launch --ranks 2 -- own_checkpoint 1
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/checkpoint/checkpoint.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>
#include <troika/parallel/data_parallel/zero_redundancy_optimizer.h>

#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kSteps = 600, kEvery = 20;

// A hash of all parameters: runs that computed the same end with the same one.
std::string digest_of(const torch::nn::Module& module) {
  troika::ContentHash hash;
  for (const torch::Tensor& parameter : module.parameters()) {
    hash.update(std::as_bytes(std::span(parameter.data_ptr<float>(), parameter.numel())));
  }
  return troika::hex(hash.digest());
}

void train(int stage) {
  const auto session = troika::Session::from_environment();
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::BatchNorm1d(64), torch::nn::GELU(),
                            torch::nn::Dropout(0.1), torch::nn::Linear(64, 1));
  troika::DataParallelOptions options;
  options.zero_stage = stage;
  troika::DataParallel model(net, session, options);
  model.seed_by_rank(1);  // dropout would draw other masks on each rank
  troika::ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(model,
                                                                 torch::optim::AdamWOptions(1e-3));
  troika::DistributedSampler sampler(512, session);
  troika::Checkpoint checkpoint("checkpoints", session);
  checkpoint.add(model).add(optimizer).add(sampler);
  std::int64_t step = checkpoint.load().value_or(0);  // of the newest; 0: there is none yet
  if (session.rank() == 0) std::cout << "begins after step " << step << std::endl;
  while (step < kSteps) {
    sampler.reset();
    std::optional<std::vector<std::size_t>> indices;
    while (step < kSteps && (indices = sampler.next(16))) {
      const auto first = static_cast<double>(indices->front());
      const torch::Tensor x = torch::sin(torch::arange(16 * 8).view({16, 8}) * (first + 1));
      optimizer.zero_grad();
      torch::mse_loss(model(x), x.square().sum(1, true)).backward();
      optimizer.step();
      if (++step % kEvery == 0) checkpoint.save(step);  // copies; writes in the background
    }
  }
  checkpoint.wait();
  if (session.rank() == 0) std::cout << "parameters " << digest_of(*net) << std::endl;
  session.leave();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    torch::manual_seed(1);
    train(argc > 1 ? std::stoi(argv[1]) : 0);
  } catch (const troika::Error& error) {
    std::cerr << "own_checkpoint: " << error.what() << std::endl;
    if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << std::endl;
    return static_cast<int>(error.code());
  }
}
