// Adapters (LoRA) go with their linear layers, however these are cut: losses, norms and pairs are
// those of one rank, masks of dropout included. The base is in no state.
#include <ATen/ATen.h>
#include <troika/checkpoint/state_gatherer.h>

#include "ranks/layouts.h"

namespace troika::test {
namespace {

Recipe adapted_recipe(const LoraOptions& lora) {
  Recipe recipe = gpt_recipe();
  recipe.model.as<GptOptions>().dropout = 0;
  recipe.model.adapter = AdapterOptions(lora_kind(), lora);
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  recipe.optimizer.lr = 0.1;
  recipe.optimizer.groups = {{.match = "*.lora_B.weight", .lr_factor = 2}};
  return recipe;
}

struct AdaptedRun {
  std::vector<double> numbers;     // losses and norms
  std::vector<NamedTensor> pairs;  // whole, on rank 0
  std::size_t in_state = 0;
};

AdaptedRun train(const LoraOptions& lora, const Layout& layout, const Rank& rank) {
  const Recipe recipe = laid_out(adapted_recipe(lora), layout, rank);
  const TrainerContext context = context_of(recipe, layout, rank);
  Trainer trainer(recipe, open_dataset(recipe.data, traits_of(recipe.model).sample, 1), context);
  AdaptedRun run;
  for (int i = 0; i < 4; ++i) {
    const StepMetrics metrics = trainer.step();
    run.numbers.push_back(metrics.loss);
    run.numbers.push_back(metrics.grad_norm);
  }
  const StateDict state = trainer.model_state();
  const StateGatherer gatherer(context.groups.world, trainer.model_specs(), state.tensors(),
                               Seconds(60));
  std::vector<at::Tensor> values;
  for (const StateTensor& each : state.tensors()) values.push_back(each.tensor);
  run.pairs = gatherer.gather(values, "pairs");
  for (NamedTensor& each : run.pairs) each.tensor = each.tensor.clone();
  run.in_state = trainer.model_specs().size();
  return run;
}

void expect_same_on_every_layout(const LoraOptions& lora, std::size_t pairs, const Rank& rank) {
  const AdaptedRun alone = train(lora, {.alone = true}, rank);
  EXPECT_EQ(alone.in_state, 2 * pairs);
  EXPECT_NE(alone.numbers[2], alone.numbers[0]);
  const std::vector<Layout> layouts = {
      {}, {.zero_stage = 1}, {.zero_stage = 2}, {.zero_stage = 3}, {.tensor = 2}, {.pipeline = 2}};
  for (const Layout& layout : layouts) {
    const AdaptedRun split = train(lora, layout, rank);
    for (std::size_t i = 0; i < alone.numbers.size(); ++i) {
      EXPECT_NEAR(split.numbers[i], alone.numbers[i], 1e-11)
          << i << " with ZeRO " << layout.zero_stage << ", tensor " << layout.tensor
          << ", pipeline " << layout.pipeline;
    }
    for (std::size_t i = 0; i < split.pairs.size(); ++i) {
      const auto& [name, value] = split.pairs[i];
      EXPECT_TRUE(value.allclose(alone.pairs[i].tensor, 1e-11, 1e-12)) << name;
    }
  }
}

RANK_TEST(Adapters, AreTheSameOnEveryLayout, 2) {
  const auto layers = static_cast<std::size_t>(gpt_recipe().model.as<GptOptions>().layers);
  expect_same_on_every_layout({.rank = 3, .alpha = 24}, 7 * layers, rank);
}

RANK_TEST(Adapters, DropTheSameOnEveryLayout, 2) {
  const auto layers = static_cast<std::size_t>(gpt_recipe().model.as<GptOptions>().layers);
  const LoraOptions lora{
      .rank = 2, .alpha = 32, .dropout = 0.4, .match = {"*.k_proj", "*.o_proj", "*.down_proj"}};
  expect_same_on_every_layout(lora, 3 * layers, rank);
}

}  // namespace
}  // namespace troika::test
