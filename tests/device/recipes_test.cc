// Recipes on a device: the gradients of the first step, the losses and the parameters of some more
// are the host's, on every layout, and no wait is missing on the way.
#include <ATen/ATen.h>
#include <troika/checkpoint/state_gatherer.h>
#include <troika/models/torchscript/options.h>

#include "device/under_test.h"
#include "ranks/layouts.h"
#include "support/script_file.h"
#include "support/temporary_folder.h"

namespace troika::test {
namespace {

struct Trained {
  std::vector<double> losses;                 // and norms
  std::vector<NamedTensor> gradients, state;  // whole, on rank 0
};

std::vector<NamedTensor> gather(const Group& world, const std::vector<StateSpec>& specs,
                                const StateDict& state) {
  const StateGatherer gatherer(world, specs, state.tensors(), Seconds(60));
  std::vector<at::Tensor> values;
  for (const StateTensor& each : state.tensors()) values.push_back(each.tensor);
  return gatherer.gather(values, "state");
}

Trained train(const Recipe& base, const Layout& layout, const Rank& rank, at::Device device) {
  const Recipe recipe = laid_out(base, layout, rank);
  TrainerContext context = context_of(recipe, layout, rank);
  context.device = device;
  Trainer trainer(recipe, open_dataset(recipe.data, traits_of(recipe.model).sample, 1), context);
  Trained trained;
  trainer.set_gradient_hook([&](const StepBatch& batch, double) {
    if (batch.step != 1) return;
    trained.gradients = gather(context.groups.world, trainer.gradient_specs(), trainer.gradients());
    for (NamedTensor& each : trained.gradients) each.tensor = each.tensor.clone();
  });
  for (int i = 0; i < 3; ++i) {
    const StepMetrics metrics = trainer.step();
    trained.losses.push_back(metrics.loss);
    trained.losses.push_back(metrics.grad_norm);
  }
  if (const auto evaluation = trainer.evaluate()) {
    trained.losses.push_back(evaluation->held_out_loss);
    for (const NamedValue& each : evaluation->metrics) trained.losses.push_back(each.value);
  }
  const StateDict state = trainer.state();  // its tensors last as long as it does
  for (const StateTensor& each : state.tensors()) {
    EXPECT_EQ(each.tensor.device().type(), device.type()) << each.name;
  }
  trained.state = gather(context.groups.world, trainer.state_specs(), state);
  return trained;
}

void expect_near(const std::vector<NamedTensor>& found, const std::vector<NamedTensor>& expected,
                 double bound, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  double largest = 0;
  for (const NamedTensor& each : expected) {
    if (each.tensor.numel() > 0) {
      largest = std::max(largest, each.tensor.to(at::kDouble).abs().max().item<double>());
    }
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, expected[i].name);
    if (expected[i].tensor.numel() == 0) continue;
    const double apart = (found[i].tensor.to(at::kDouble) - expected[i].tensor.to(at::kDouble))
                             .abs()
                             .max()
                             .item<double>();
    EXPECT_LE(apart, bound * largest + 1e-14) << what << ", " << found[i].name;
  }
}

// On the device as on the host, with the same layout.
void expect_the_same(const Recipe& recipe, const Layout& layout, const Rank& rank) {
  const DeviceWatch watch;
  const Trained host = train(recipe, layout, rank, at::kCPU);
  const Trained device = train(recipe, layout, rank, device_under_test());
  ASSERT_EQ(device.losses.size(), host.losses.size());
  for (std::size_t i = 0; i < host.losses.size(); ++i) {
    EXPECT_NEAR(device.losses[i], host.losses[i], 1e-11 * std::abs(host.losses[i])) << i;
  }
  expect_near(device.gradients, host.gradients, 1e-11, "gradient");
  expect_near(device.state, host.state, 1e-11, "state");
}

Recipe with_sgd(Recipe recipe) {
  recipe.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  recipe.optimizer.kind.as<MomentumOptions>().momentum = 0.9;
  recipe.optimizer.lr = 0.1;
  return recipe;
}

Recipe mlp_recipe() {
  Recipe recipe = base_recipe();
  recipe.model = ModelOptions(mlp_kind(), MlpOptions{6, {8, 5}, 3, ActivationFunction::kTanh});
  recipe.train.metrics = {"accuracy", "f1", "perplexity"};
  return recipe;
}

RANK_TEST(DeviceRecipes, Mlp, 1, 2) {
  expect_the_same(with_sgd(mlp_recipe()), {}, rank);
}

RANK_TEST(DeviceRecipes, MlpWithOtherLosses, 1) {
  for (const std::string_view loss : {"binary_cross_entropy", "mean_square"}) {
    Recipe recipe = with_sgd(mlp_recipe());
    recipe.model.loss = LossOptions::named(loss);
    recipe.train.metrics = {loss == "mean_square" ? "rmse" : "auc"};
    expect_the_same(recipe, {}, rank);
  }
}

RANK_TEST(DeviceRecipes, Torchscript, 1, 2) {
  const TemporaryFolder folder;
  write_script(folder.path() / "net.pt");
  TorchscriptOptions options;
  options.path = (folder.path() / "net.pt").string();
  options.inputs = {{"x", {6}}};
  options.targets = {{"y", {}, ScriptDtype::kInt64, 3}};
  Recipe recipe = with_sgd(base_recipe());
  recipe.model = ModelOptions(torchscript_kind(), options);
  recipe.train.micro_batch_size = 2;
  recipe.train.metrics = {"accuracy"};
  expect_the_same(recipe, {}, rank);
  Layout sharded;
  sharded.zero_stage = 3;
  expect_the_same(recipe, sharded, rank);
}

RANK_TEST(DeviceRecipes, Gpt, 1, 2) {
  expect_the_same(with_sgd(gpt_recipe()), {}, rank);
}

// GPT-2's choices, grouped queries that no ranks can share evenly, dropout, documents.
Recipe other_gpt() {
  Recipe recipe = with_sgd(gpt_recipe());
  auto& gpt = recipe.model.as<GptOptions>();
  gpt.norm = Norm::kLayerNorm;
  gpt.position = Position::kLearned;
  gpt.activation = ActivationFunction::kGelu;
  gpt.bias = true;
  gpt.dropout = 0.1;
  gpt.heads = 3;
  gpt.kv_heads = 3;
  gpt.head_dim = 4;
  gpt.tied_embeddings = false;
  return recipe;
}

RANK_TEST(DeviceRecipes, GptWithOtherChoices, 1, 2) {
  expect_the_same(other_gpt(), {}, rank);
}

RANK_TEST(DeviceRecipes, ZeroStages, 2) {
  for (const int stage : {1, 2, 3}) {
    expect_the_same(with_sgd(gpt_recipe()), {.zero_stage = stage}, rank);
  }
}

RANK_TEST(DeviceRecipes, TensorAxis, 2) {
  expect_the_same(with_sgd(gpt_recipe()), {.tensor = 2}, rank);
  expect_the_same(other_gpt(), {.tensor = 2}, rank);
}

RANK_TEST(DeviceRecipes, Pipelines, 2) {
  for (const std::string_view schedule : {"1f1b", "gpipe", "zb-h1", "zb-v"}) {
    Recipe recipe = with_sgd(gpt_recipe());
    recipe.parallel.pipeline_schedule = schedule;
    recipe.model.as<GptOptions>().layers = 4;
    expect_the_same(recipe, {.pipeline = 2}, rank);
  }
}

RANK_TEST(DeviceRecipes, AllAxesAtOnce, 4) {
  Recipe recipe = with_sgd(gpt_recipe());
  expect_the_same(recipe, {.tensor = 2, .pipeline = 2}, rank);
  expect_the_same(recipe, {.tensor = 2, .zero_stage = 3}, rank);
  expect_the_same(recipe, {.pipeline = 2, .zero_stage = 2}, rank);
}

RANK_TEST(DeviceRecipes, ActivationCheckpoints, 2) {
  for (const auto checkpoint : {ActivationCheckpoint::kSelective, ActivationCheckpoint::kFull}) {
    Recipe recipe = other_gpt();
    recipe.parallel.activation_checkpoint = checkpoint;
    expect_the_same(recipe, {.zero_stage = 3}, rank);
  }
}

RANK_TEST(DeviceRecipes, Resnet, 1, 2) {
  Recipe recipe = with_sgd(resnet_recipe());
  recipe.train.micro_batch_size = 2;
  expect_the_same(recipe, {}, rank);
  if (rank.size() == 1) return;
  expect_the_same(recipe, {.pipeline = 2}, rank);
  expect_the_same(recipe, {.zero_stage = 3}, rank);
  recipe.model.as<ResnetOptions>().norm = BatchNormKind::kSynchronised;
  expect_the_same(recipe, {}, rank);
}

// Working weights of few bits beside fp32 masters; fp16 scales its loss, and leaves steps out where
// that overflows. The device rounds in other places, so what is compared is how training goes.
RANK_TEST(DeviceRecipes, FewBits, 1, 2) {
  for (const Precision precision : {Precision::kBFloat16, Precision::kFloat16}) {
    for (const std::int64_t stage : {0, 3}) {
      const DeviceWatch watch;
      Recipe recipe = gpt_recipe();
      recipe.train.precision = precision;
      recipe.train.on_nonfinite = OnNonFinite::kSkip;
      const Trained host = train(recipe, {.zero_stage = stage}, rank, at::kCPU);
      const Trained device = train(recipe, {.zero_stage = stage}, rank, device_under_test());
      for (std::size_t i = 0; i < host.losses.size(); i += 2) {
        EXPECT_NEAR(device.losses[i] / host.losses[i], 1, 0.01) << i;
      }
      expect_near(device.gradients, host.gradients, 0.05, "gradient");
    }
  }
}

// Momentum and weight decay, of which the other rules do what SGD's do not show.
RANK_TEST(DeviceRecipes, Optimisers, 1, 2) {
  for (const std::string_view kind : {"adamw", "lamb", "lars", "lion"}) {
    Recipe recipe = with_sgd(mlp_recipe());
    recipe.optimizer.kind = Chosen<OptimizerKind>::named(kind);
    recipe.optimizer.lr = 0.01;
    expect_the_same(recipe, {.zero_stage = rank.size() == 1 ? 0 : 2}, rank);
  }
}

}  // namespace
}  // namespace troika::test
