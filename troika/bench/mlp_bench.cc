#include <torch/torch.h>
#include <troika/base/function_ref.h>
#include <troika/bench/mlp_bench.h>
#include <troika/parallel/data_parallel/data_parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace troika {
namespace {

constexpr std::int64_t kInputs = 64, kHidden = 128, kClasses = 10, kSamples = 32;
constexpr std::size_t kBatches = 64;
constexpr double kLearningRate = 0.05;
constexpr std::int64_t kWarmUpSteps = 100;

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) {
    return c->forward(torch::relu(b->forward(torch::relu(a->forward(input)))));
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(kInputs, kHidden));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(kHidden, kHidden));
  torch::nn::Linear c = register_module("c", torch::nn::Linear(kHidden, kClasses));
};

struct Batch {
  torch::Tensor input, target;
};

std::vector<Batch> make_batches() {
  std::vector<Batch> batches;
  for (std::size_t i = 0; i < kBatches; ++i) {
    batches.push_back(
        {torch::randn({kSamples, kInputs}), torch::randint(kClasses, {kSamples}, torch::kLong)});
  }
  return batches;
}

// `model(input)` is the only difference between a plain model and one in DataParallel.
template <class Model>
double train(
    Model& model, torch::optim::Optimizer& optimizer, const std::vector<Batch>& batches,
    std::int64_t steps, FunctionRef<void()> after_step = [] {}) {
  double loss = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Batch& batch = batches[static_cast<std::size_t>(step) % batches.size()];
    optimizer.zero_grad();
    const torch::Tensor error =
        torch::nn::functional::cross_entropy(model.forward(batch.input), batch.target);
    error.backward();
    optimizer.step();
    loss = error.item<double>();
    after_step();
  }
  return loss;
}

double now_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(Session session)
      : session_(std::move(session)),
        batches_(make_batches()),
        net_(std::make_shared<Net>()),
        model_(net_, session_),
        optimizer_(net_->parameters(), kLearningRate),
        plain_net_(std::make_shared<Net>()),
        plain_optimizer_(plain_net_->parameters(), kLearningRate) {}

  MlpTiming run(const MlpBenchOptions& options) {
    MlpTiming timing;
    timing.loss = train(model_, optimizer_, batches_, 1);
    timing.first_step_at = now_since_1970();
    timing.repeats = options.repeats;
    timing.steps = options.steps > 0 ? options.steps : steps_for(options);
    std::vector<double> synchronised, unsynchronised, with_barrier;
    for (int i = 0; i < options.repeats; ++i) {
      synchronised.push_back(slowest_rate(
          timing.steps, [&] { timing.loss = train(model_, optimizer_, batches_, timing.steps); }));
      if (options.compare == MlpBenchOptions::Compare::kUnsynchronised) {
        const double rate = static_cast<double>(timing.steps) / seconds_of([&] {
                              (void)train(*plain_net_, plain_optimizer_, batches_, timing.steps);
                            });
        unsynchronised.push_back(session_.average(rate, "mean rate"));
        with_barrier.push_back(slowest_rate(timing.steps, [&] {
          (void)train(*plain_net_, plain_optimizer_, batches_, timing.steps,
                      [&] { session_.world().barrier(session_.call("after a step")).wait(); });
        }));
      }
    }
    timing.steps_per_second = median(synchronised);
    if (!unsynchronised.empty()) timing.unsynchronised_steps_per_second = median(unsynchronised);
    if (!with_barrier.empty()) timing.barrier_steps_per_second = median(with_barrier);
    return timing;
  }

 private:
  // Of the slowest rank.
  template <class Work>
  double slowest_rate(std::int64_t steps, const Work& work) {
    double seconds = seconds_of(work);
    session_.reduce({&seconds, 1}, ReduceOp::kMax, "slowest");
    return static_cast<double>(steps) / seconds;
  }
  template <class Work>
  double seconds_of(const Work& work) {
    session_.barrier("together");
    const auto start = Clock::now();
    work();
    return Seconds(Clock::now() - start).count();
  }

  // Equal on all ranks.
  std::int64_t steps_for(const MlpBenchOptions& options) {
    (void)train(model_, optimizer_, batches_, kWarmUpSteps);
    double seconds = seconds_of([&] { (void)train(model_, optimizer_, batches_, kWarmUpSteps); });
    session_.reduce({&seconds, 1}, ReduceOp::kMax, "slowest");
    if (options.compare == MlpBenchOptions::Compare::kUnsynchronised) {
      (void)train(*plain_net_, plain_optimizer_, batches_, kWarmUpSteps);
    }
    const double fit = options.budget.count() / options.repeats / seconds * kWarmUpSteps;
    return std::max<std::int64_t>(1, std::llround(fit));
  }

  Session session_;
  std::vector<Batch> batches_;
  std::shared_ptr<Net> net_;
  DataParallel<std::shared_ptr<Net>> model_;
  torch::optim::SGD optimizer_;
  std::shared_ptr<Net> plain_net_;
  torch::optim::SGD plain_optimizer_;
};

}  // namespace

MlpTiming bench_mlp(const Session& session, const MlpBenchOptions& options) {
  torch::manual_seed(1337 + session.rank());
  return Bench(session).run(options);
}

}  // namespace troika
