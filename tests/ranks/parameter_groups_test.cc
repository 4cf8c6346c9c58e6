// Parameter groups (frozen, learning-rate factor, weight decay) go with the parameters, however
// they are cut: losses, norms and the model are those of one rank. What is frozen takes no part in
// a step and changes no bit of the rest.
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

// Which parameters are frozen, in a model whose head is not tied.
const std::vector<std::vector<std::string>> kFrozen = {
    {"model.*"},                           // all but the head
    {"model.embed*", "model.layers.0.*"},  // all below a block
    {"*norm*", "*.mlp.*"},                 // a part of each unit
    {"lm_head*", "model.layers.1.*"},      // above what is trained
};

enum class Treatment { kFrozen, kRateOfZero };

// A rate of zero keeps values as well, at the cost of training.
Recipe kept_recipe(Precision precision, const std::vector<std::string>& patterns,
                   Treatment treatment) {
  Recipe recipe = gpt_recipe();
  recipe.model.as<GptOptions>().tied_embeddings = false;
  recipe.model.as<GptOptions>().bias = true;
  recipe.train.precision = precision;
  recipe.train.grad_clip = 0;  // norms differ
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("adamw");
  for (const std::string& pattern : patterns) {
    if (treatment == Treatment::kFrozen) {
      recipe.optimizer.groups.push_back({.match = pattern, .frozen = true});
    } else {
      recipe.optimizer.groups.push_back({.match = pattern, .lr_factor = 0, .weight_decay = 0.0});
    }
  }
  return recipe;
}

struct KeptRun {
  std::vector<double> losses;
  std::vector<NamedTensor> model;  // whole, on rank 0
  std::int64_t gradient_bytes = 0;
  int activations = 0;  // that a stage kept at once
  bool has_backward = true;
};

KeptRun train_kept(const Recipe& given, const Layout& layout, const Rank& rank) {
  const Recipe recipe = laid_out(given, layout, rank);
  const TrainerContext context = context_of(recipe, layout, rank);
  Trainer trainer(recipe, open_dataset(recipe.data, traits_of(recipe.model).sample, 1), context);
  KeptRun run;
  for (int i = 0; i < 3; ++i) run.losses.push_back(trainer.step().loss);
  run.model = model_of(trainer, context.groups.world);
  run.gradient_bytes = trainer.model().arena().bytes(Storage::kGradients);
  run.activations = trainer.peak_stage_activations();
  run.has_backward = context.groups.pipeline.rank() >= trainer.model().first_trained_stage();
  return run;
}

void expect_trained_alike(const Recipe& frozen, const Recipe& at_rate_zero, const Layout& layout,
                          const Rank& rank) {
  const KeptRun found = train_kept(frozen, layout, rank);
  const KeptRun expected = train_kept(at_rate_zero, layout, rank);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_LE(found.gradient_bytes, expected.gradient_bytes);  // a stage may have none of them
  EXPECT_EQ(found.activations > 0, found.has_backward);
  for (std::size_t i = 0; i < found.model.size(); ++i) {
    const auto& [name, value] = found.model[i];
    EXPECT_TRUE(value.equal(expected.model[i].tensor.to(value.scalar_type()))) << name;
  }
}

// The values of the frozen parameters, and every bit of the others. Each layout meets two of the
// patterns or more, as each pattern meets half of the layouts: all pairs take too long.
RANK_TEST(ParameterGroups, FrozenOnesChangeNoBitOfTheOthers, 2, 4) {
  std::vector<Layout> layouts = {{.pipeline = 2, .zero_stage = 3}, {.tensor = 2, .zero_stage = 2}};
  if (rank.size() == 2) {
    layouts = {{},
               {.zero_stage = 1},
               {.zero_stage = 2},
               {.zero_stage = 3},
               {.tensor = 2},
               {.pipeline = 2},
               {.alone = true}};
  }
  for (std::size_t i = 0; i < kFrozen.size(); ++i) {
    for (std::size_t j = 0; j < layouts.size(); ++j) {
      if ((i + j) % 2 != 0) continue;
      const Layout& layout = layouts[j];
      const Precision precision = (i + j) % 4 == 0 ? Precision::kBFloat16 : Precision::kFloat32;
      SCOPED_TRACE(kFrozen[i].front() + " with ZeRO " + std::to_string(layout.zero_stage) +
                   ", tensor " + std::to_string(layout.tensor) + ", pipeline " +
                   std::to_string(layout.pipeline));
      expect_trained_alike(kept_recipe(precision, kFrozen[i], Treatment::kFrozen),
                           kept_recipe(precision, kFrozen[i], Treatment::kRateOfZero), layout,
                           rank);
    }
  }
}

// With one microbatch a step gradients are cut as well, and working weights come and go.
RANK_TEST(ParameterGroups, FrozenOnesChangeNoBitWithOneMicrobatch, 2) {
  for (const auto& patterns : kFrozen) {
    for (const std::int64_t stage : {2, 3}) {
      Recipe frozen = kept_recipe(Precision::kBFloat16, patterns, Treatment::kFrozen);
      Recipe at_rate_zero = kept_recipe(Precision::kBFloat16, patterns, Treatment::kRateOfZero);
      frozen.train.micro_batch_size = at_rate_zero.train.micro_batch_size = 4;
      expect_trained_alike(frozen, at_rate_zero, {.zero_stage = stage}, rank);
    }
  }
}

// Modules with autograd: a ResNet whose first layers are frozen, running statistics aside.
RANK_TEST(ParameterGroups, FrozenOnesOfModulesChangeNoBitOfTheOthers, 2) {
  for (const std::vector<std::string>& patterns :
       {std::vector<std::string>{"conv1*", "bn1*", "layer1*"}, std::vector<std::string>{"*bn*"},
        std::vector<std::string>{"fc*"}}) {
    for (const std::int64_t stage : {0, 3}) {
      const auto recipe_with = [&](Treatment treatment) {
        Recipe recipe = kept_recipe(Precision::kFloat32, patterns, treatment);
        recipe.model = resnet_recipe().model;
        return recipe;
      };
      SCOPED_TRACE(patterns.front() + " at stage " + std::to_string(stage));
      expect_trained_alike(recipe_with(Treatment::kFrozen), recipe_with(Treatment::kRateOfZero),
                           {.zero_stage = stage}, rank);
    }
  }
}

}  // namespace
}  // namespace troika::test
