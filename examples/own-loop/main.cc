// A training loop with what real ones have: gradients accumulated over several batches, a last
// batch that is smaller than the others, ranks that do not have the same number of batches, and a
// custom hook between the backward pass and the optimiser.
//
//   troika launch --ranks 2 -- own_loop
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t kSamples = 1025;  // one rank has one more, and a step more for it
constexpr std::size_t kBatch = 32;
constexpr std::size_t kBatchesAStep = 2;

// Averages gradients as usual, and counts what that takes.
class Meter final : public troika::BucketHook {
 public:
  troika::Work start(const troika::GradientBucket& bucket) override {
    bytes_ += bucket.gradients.nbytes();
    return bucket.group->all_reduce(bucket.gradients, troika::ReduceOp::kAverage, bucket.call);
  }
  void finish(const troika::GradientBucket&) override { ++buckets_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t buckets() const { return buckets_; }

 private:
  std::size_t bytes_ = 0;
  std::size_t buckets_ = 0;
};

// y = sum of sin(x) with noise, a function of the sample's number.
std::pair<torch::Tensor, torch::Tensor> batch_of(const std::vector<std::size_t>& indices) {
  std::vector<torch::Tensor> inputs;
  for (const std::size_t index : indices) {
    auto generator = at::detail::createCPUGenerator(index);
    inputs.push_back(torch::rand({8}, generator) * 2);
  }
  const torch::Tensor x = torch::stack(inputs);
  return {x, x.sin().sum(1, true)};
}

// The batches of one optimiser step, or fewer at the end of an epoch.
std::vector<std::vector<std::size_t>> next_step(troika::DistributedSampler& sampler) {
  std::vector<std::vector<std::size_t>> batches;
  while (batches.size() < kBatchesAStep) {
    auto indices = sampler.next(kBatch);
    if (!indices) break;
    batches.push_back(std::move(*indices));
  }
  return batches;
}

void train() {
  const auto session = troika::Session::from_environment();
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  const auto meter = std::make_shared<Meter>();
  troika::DataParallelOptions options;
  options.hook = meter;
  troika::DataParallel model(net, session, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));

  // Every sample exactly once an epoch, so some ranks have one more than others.
  troika::DistributedSamplerOptions dealing;
  dealing.tail = troika::DistributedSamplerOptions::Tail::kUneven;
  troika::DistributedSampler sampler(kSamples, session, dealing);

  for (int epoch = 0; epoch < 5; ++epoch) {
    sampler.reset();
    double loss_sum = 0, seen = 0;
    int steps = 0;
    for (auto batches = next_step(sampler); !batches.empty(); batches = next_step(sampler)) {
      std::size_t samples = 0;
      for (const auto& batch : batches) samples += batch.size();
      optimizer.zero_grad();
      const auto backward = [&](const std::vector<std::size_t>& indices) {
        const auto [x, y] = batch_of(indices);
        // All of the step's batches together are one mean.
        const torch::Tensor sum = torch::mse_loss(model(x), y, at::Reduction::Sum);
        (sum / static_cast<double>(samples)).backward();
        loss_sum += sum.item<double>();
      };
      {
        const auto accumulating = model.no_sync();
        for (std::size_t i = 0; i + 1 < batches.size(); ++i) backward(batches[i]);
      }
      model.weigh(static_cast<double>(samples));  // the last step of an epoch is smaller
      backward(batches.back());
      optimizer.step();
      ++steps;
      seen += static_cast<double>(samples);
    }
    model.join([&] { optimizer.step(); });  // until the other ranks have no batches either
    const double loss = session.average(loss_sum / seen, seen, "loss");
    const std::vector<std::string> all_steps = session.gather(std::to_string(steps), "steps");
    if (session.rank() == 0) {
      std::cout << "epoch " << epoch << ": loss " << loss << ", steps of the ranks";
      for (const std::string& each : all_steps) std::cout << " " << each;
      std::cout << ", " << meter->buckets() << " buckets and " << meter->bytes()
                << " bytes averaged so far" << std::endl;
    }
  }
  session.leave();
}

}  // namespace

int main() {
  try {
    torch::manual_seed(1);
    train();
  } catch (const troika::Error& error) {
    std::cerr << "own_loop: " << error.what() << std::endl;
    if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << std::endl;
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "own_loop: " << error.what() << std::endl;
    return 1;
  }
}
