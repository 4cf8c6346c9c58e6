// The state of a run goes from any layout to any other: training goes on as if it had never
// stopped, to the last bit on the layout it came from.
#include <ATen/ATen.h>
#include <troika/checkpoint/state_gatherer.h>

#include "ranks/layouts.h"

namespace troika::test {
namespace {

class Run {
 public:
  Run(const Recipe& recipe, const Layout& layout, const Rank& rank)
      : recipe_(laid_out(recipe, layout, rank)),
        context_(context_of(recipe_, layout, rank)),
        trainer_(recipe_, open_dataset(recipe_.data, traits_of(recipe_.model).sample, 1),
                 context_) {}

  std::vector<double> losses(int steps) {
    std::vector<double> found;
    for (int i = 0; i < steps; ++i) {
      const StepMetrics metrics = trainer_.step();
      found.push_back(metrics.loss);
      found.push_back(metrics.grad_norm);
    }
    return found;
  }

  // Whole tensors, on every rank.
  std::vector<NamedTensor> whole() {
    const StateDict state = trainer_.state();
    const std::vector<StateSpec> specs = trainer_.state_specs();
    const StateGatherer gatherer(context_.groups.world, specs, state.tensors(), Seconds(60));
    std::vector<at::Tensor> values;
    for (const StateTensor& each : state.tensors()) values.push_back(each.tensor);
    std::vector<NamedTensor> tensors = gatherer.gather(values, "state");
    if (tensors.empty()) {
      for (const StateSpec& spec : specs) {
        tensors.push_back({spec.name, at::empty(spec.shape, spec.type)});
      }
    }
    for (NamedTensor& each : tensors) {
      each.tensor = each.tensor.clone();
      context_.groups.world.broadcast(each.tensor, 0, Rank::call("state")).wait();
    }
    return tensors;
  }

  [[nodiscard]] StateDict numbers() { return trainer_.state(); }

  // Returns the parameters that were frozen there.
  std::vector<std::string> restore(const std::vector<NamedTensor>& whole,
                                   const StateDict& numbers) {
    const auto has = [&](const std::string& name) {
      return std::ranges::count(whole, name, &NamedTensor::name) > 0;
    };
    const StateDict own = trainer_.places(has);
    for (const StateTensor& each : own.tensors()) {
      const auto found = std::ranges::find(whole, each.name, &NamedTensor::name);
      EXPECT_NE(found, whole.end()) << each.name;
      if (found != whole.end()) copy_from_whole(each.shard, found->tensor, each.tensor);
    }
    trainer_.restore(numbers);
    return trainer_.unfrozen_since(has);
  }

 private:
  Recipe recipe_;
  TrainerContext context_;
  Trainer trainer_;
};

void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                 double bound) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], bound * std::abs(expected[i])) << i;
  }
}

// Three steps on `from`, three on `to`, against six on `from`.
void expect_to_go_on(const Recipe& recipe, const Layout& from, const Layout& to, const Rank& rank,
                     double bound) {
  Run straight(recipe, from, rank), first(recipe, from, rank), second(recipe, to, rank);
  (void)straight.losses(3);
  (void)first.losses(3);
  const std::vector<NamedTensor> whole = first.whole();
  second.restore(whole, first.numbers());
  expect_near(second.losses(3), straight.losses(3), bound);
}

RANK_TEST(State, GoesOnWithTheSameBits, 1, 2) {
  for (const char* optimizer : {"adamw", "sgd"}) {
    Recipe recipe = gpt_recipe();
    recipe.optimizer.kind = Chosen<OptimizerKind>::named(optimizer);
    for (const Layout& layout : {Layout{}, Layout{.zero_stage = 1}, Layout{.zero_stage = 3}}) {
      expect_to_go_on(recipe, layout, layout, rank, 0);
    }
  }
}

RANK_TEST(State, GoesFromAnyLayoutToAnyOther, 2, 4) {
  Recipe recipe = gpt_recipe();
  recipe.model.as<GptOptions>().tied_embeddings = false;
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  const std::vector<Layout> layouts = {{.zero_stage = 3},
                                       {.pipeline = 2},
                                       {.tensor = 2},
                                       {.tensor = 2, .zero_stage = 2},
                                       {.alone = true}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Layout& next = layouts[(i + 1) % layouts.size()];
    SCOPED_TRACE(i);
    expect_to_go_on(recipe, layouts[i], next, rank, 1e-11);
  }
}

// Momentum, moments and running statistics are part of it.
RANK_TEST(State, HasBuffersAndWhatOptimisersKeep, 2) {
  expect_to_go_on(resnet_recipe(), {}, {.zero_stage = 2}, rank, 0);
  Run run(resnet_recipe(), {}, rank);
  (void)run.losses(1);
  std::vector<std::string> names;
  for (const NamedTensor& each : run.whole()) names.push_back(each.name);
  for (const char* name : {"bn1.running_mean", "bn1.num_batches_tracked", "fc.weight",
                           "optimizer.exp_avg.fc.weight", "optimizer.exp_avg_sq.conv1.weight"}) {
    EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  }
}

// What was frozen has no state, and begins with zeros; what is frozen from now on needs none.
RANK_TEST(State, GoesOnWithOtherParametersFrozen, 2) {
  const std::string part = "model.layers.0.";
  for (const Precision precision : {Precision::kFloat64, Precision::kBFloat16}) {
    Recipe trained = gpt_recipe(), frozen = gpt_recipe();
    trained.train.precision = frozen.train.precision = precision;
    frozen.optimizer.groups = {{.match = part + "*", .frozen = true}};
    for (const std::int64_t stage : {0, 2, 3}) {
      Run first(frozen, {.zero_stage = stage}, rank), second(trained, {.zero_stage = 1}, rank);
      (void)first.losses(2);
      const std::vector<NamedTensor> before = first.whole();
      const std::vector<std::string> unfrozen = second.restore(before, first.numbers());
      EXPECT_EQ(unfrozen.size(), 9U);
      for (const auto& [name, value] : second.whole()) {
        const auto found = std::ranges::find(before, name, &NamedTensor::name);
        const bool is_state = name.starts_with("optimizer.");
        EXPECT_EQ(found == before.end(), is_state && name.find(part) != std::string::npos) << name;
        if (found == before.end()) {
          EXPECT_EQ(value.count_nonzero().item<std::int64_t>(), 0) << name;
        } else {
          EXPECT_TRUE(value.equal(found->tensor.to(value.scalar_type()))) << name;
        }
      }
      (void)second.losses(1);
      Run third(frozen, {.zero_stage = stage}, rank);
      EXPECT_TRUE(third.restore(second.whole(), second.numbers()).empty());
      (void)third.losses(1);
    }
  }
}

}  // namespace
}  // namespace troika::test
