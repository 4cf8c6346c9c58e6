// A trainer without a job, and another way for replicas to stay together than all-reduce: what a
// new kind of sync has to write is what is here.
#include <ATen/ATen.h>
#include <troika/data/sources/random/random.h>
#include <troika/models/mlp/options.h>
#include <troika/recipe/resolve.h>
#include <troika/train/trainer.h>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

Recipe small_recipe(int ranks) {
  Recipe recipe;
  recipe.name = "small";
  recipe.model = ModelOptions(mlp_kind(), MlpOptions{6, {8, 5}, 3, ActivationFunction::kTanh});
  recipe.data = DataOptions(random_kind(), RandomOptions{0});
  recipe.train.global_batch_size = 8;
  recipe.train.micro_batch_size = 2;
  recipe.train.precision = Precision::kFloat64;
  recipe.train.grad_clip = 0;
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  recipe.optimizer.warmup_steps = 0;
  recipe.optimizer.lr = 0.1;
  return resolve_recipe(recipe, ranks);
}

std::shared_ptr<const Dataset> random_data(const Recipe& recipe) {
  return open_dataset(recipe.data, traits_of(recipe.model).sample, 1);
}

std::vector<double> losses(Trainer& trainer, int steps) {
  std::vector<double> found;
  for (int i = 0; i < steps; ++i) found.push_back(trainer.step().loss);
  return found;
}

std::vector<double> losses_alone(int steps) {
  const Recipe recipe = small_recipe(1);
  Trainer trainer(recipe, random_data(recipe), {});
  return losses(trainer, steps);
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
}

RANK_TEST(ReplicaSync, ATrainerNeedsNoJob, 1, 2) {
  const Recipe recipe = small_recipe(rank.size());
  TrainerContext context;
  context.groups.world = context.groups.data = context.groups.shard = rank.group();
  Trainer trainer(recipe, random_data(recipe), context);
  const std::vector<double> found = losses(trainer, 6);
  expect_near(found, losses_alone(6));
}

// Local SGD (Stich 2019): every replica updates itself, and after every `interval` steps all take
// the mean of their parameters.
class LocalSteps final : public ReplicaSync {
 public:
  LocalSteps(Arena& arena, Group replicas, int interval)
      : arena_(arena),
        replicas_(std::move(replicas)),
        interval_(interval),
        alone_(arena, AllReduceOptions{}) {}

  void begin_step(int microbatches, Seconds timeout) override {
    alone_.begin_step(microbatches, timeout);
  }
  void reduce(const StepPart& own) override { alone_.reduce(own); }
  [[nodiscard]] Updater finish() override { return alone_.finish(); }
  [[nodiscard]] StepSums sums() override { return alone_.sums(); }
  void end_step(bool applied) override {
    alone_.end_step(applied);
    if (++steps_ % interval_ != 0) return;
    const at::Tensor masters = arena_.masters(0, arena_.units());
    replicas_.all_reduce(masters, ReduceOp::kAverage, Rank::call("parameters")).wait();
    arena_.publish();
  }
  void refresh() override { alone_.refresh(); }
  [[nodiscard]] StepSums sum(const StepPart& own, std::string_view label) const override {
    return StepReduction({replicas_}, own, std::string(label), Seconds(60)).wait();
  }
  [[nodiscard]] std::int64_t smallest(std::int64_t own, std::string_view label) const override {
    return alone_.smallest(own, label);
  }
  void prepare_gradients(int unit) override { alone_.prepare_gradients(unit); }
  void gradients_ready(int unit) override { alone_.gradients_ready(unit); }

 private:
  Arena& arena_;
  Group replicas_;
  int interval_, steps_ = 0;
  AllReduceSync alone_;
};

// With SGD and shares of one size, the mean of parameters after every step is the step of the mean
// gradient: from the second loss on the replicas' losses average to that of one rank.
RANK_TEST(ReplicaSync, AnotherKindPlugsIn, 2) {
  const Recipe recipe = small_recipe(rank.size());
  const auto train = [&](int interval) {
    TrainerContext context;
    context.groups.data = rank.group();  // which shares out the samples, and nothing else
    context.make_sync = [&](Arena& arena, const TrainerContext& given) {
      return std::make_unique<LocalSteps>(arena, given.groups.data, interval);
    };
    Trainer trainer(recipe, random_data(recipe), context);
    std::vector<double> means = losses(trainer, 6);
    for (double& mean : means) {
      const at::Tensor shared = at::scalar_tensor(mean, at::kDouble).view({1});
      rank.group().all_reduce(shared, ReduceOp::kAverage, Rank::call("losses")).wait();
      mean = shared.item<double>();
    }
    return means;
  };
  const std::vector<double> alone = losses_alone(6);
  expect_near(train(1), alone);
  const std::vector<double> apart = train(3);
  EXPECT_GT(std::abs(apart[2] - alone[2]), 1e-9);  // two steps apart
}

}  // namespace
}  // namespace troika::test
