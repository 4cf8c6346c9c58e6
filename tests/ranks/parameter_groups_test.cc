// Parameter groups (frozen, learning-rate factor, weight decay) go with the parameters, however
// they are cut: losses, norms and the model are those of one rank.
#include <ATen/ATen.h>
#include <troika/checkpoint/state_gatherer.h>

#include "ranks/layouts.h"

namespace troika::test {
namespace {

Recipe grouped_recipe() {
  Recipe recipe = gpt_recipe();
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  recipe.optimizer.kind.as<MomentumOptions>().momentum = 0.9;
  recipe.optimizer.lr = 0.1;
  recipe.optimizer.groups = {{.match = "model.layers.0.*", .frozen = true},
                             {.match = "*.mlp.*", .lr_factor = 0.5, .weight_decay = 0.3},
                             {.match = "*norm*", .weight_decay = 0.1}};
  return recipe;
}

struct GroupedRun {
  std::vector<double> numbers;      // losses and norms
  std::vector<NamedTensor> before;  // whole, on rank 0
  std::vector<NamedTensor> after;
};

std::vector<NamedTensor> model_of(Trainer& trainer, const Group& world) {
  const StateDict state = trainer.model_state();
  const StateGatherer gatherer(world, trainer.model_specs(), state.tensors(), Seconds(60));
  std::vector<at::Tensor> values;
  for (const StateTensor& each : state.tensors()) values.push_back(each.tensor);
  std::vector<NamedTensor> model = gatherer.gather(values, "model");
  for (NamedTensor& each : model) each.tensor = each.tensor.clone();
  return model;
}

GroupedRun train(const Layout& layout, const Rank& rank) {
  const Recipe recipe = laid_out(grouped_recipe(), layout, rank);
  const TrainerContext context = context_of(recipe, layout, rank);
  Trainer trainer(recipe, open_dataset(recipe.data, traits_of(recipe.model).sample, 1), context);
  GroupedRun outcome;
  outcome.before = model_of(trainer, context.groups.world);
  for (int i = 0; i < 4; ++i) {
    const StepMetrics metrics = trainer.step();
    outcome.numbers.push_back(metrics.loss);
    outcome.numbers.push_back(metrics.grad_norm);
  }
  outcome.after = model_of(trainer, context.groups.world);
  return outcome;
}

RANK_TEST(ParameterGroups, AreTheSameOnEveryLayout, 2) {
  const GroupedRun alone = train({.alone = true}, rank);
  const std::vector<Layout> layouts = {
      {}, {.zero_stage = 1}, {.zero_stage = 2}, {.zero_stage = 3}, {.tensor = 2}, {.pipeline = 2}};
  for (const Layout& layout : layouts) {
    const GroupedRun split = train(layout, rank);
    for (std::size_t i = 0; i < alone.numbers.size(); ++i) {
      EXPECT_NEAR(split.numbers[i], alone.numbers[i], 1e-11)
          << i << " with ZeRO " << layout.zero_stage << ", tensor " << layout.tensor
          << ", pipeline " << layout.pipeline;
    }
    for (std::size_t i = 0; i < split.after.size(); ++i) {
      const auto& [name, value] = split.after[i];
      EXPECT_TRUE(value.allclose(alone.after[i].tensor, 1e-11, 1e-12)) << name;
      const bool frozen = name.starts_with("model.layers.0.");
      EXPECT_EQ(value.equal(split.before[i].tensor), frozen) << name;
    }
  }
}

}  // namespace
}  // namespace troika::test
