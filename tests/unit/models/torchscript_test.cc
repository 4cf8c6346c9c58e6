// Files of TorchScript as modules and as models of recipes. That their gradients are PyTorch's is
// for the tests in Python (tests/command/judged_torchscript_test.py).
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/models/torchscript/script_module.h>
#include <troika/models/torchscript/torchscript.h>
#include <troika/nn/module_tensors.h>

#include <fstream>

#include "support/script_file.h"
#include "support/temporary_folder.h"

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class Torchscript : public testing::Test {
 protected:
  std::filesystem::path write(double dropout = 0, bool traced = false,
                              const std::string& name = "net.pt") {
    test::write_script(folder_.path() / name, dropout, traced);
    return folder_.path() / name;
  }
  static std::vector<std::string> names(const std::vector<NamedTensor>& tensors) {
    std::vector<std::string> names;
    for (const NamedTensor& each : tensors) names.push_back(each.name);
    return names;
  }
  static TorchscriptOptions options(const std::filesystem::path& path) {
    TorchscriptOptions options;
    options.path = path.string();
    options.inputs = {{"x", {6}}};
    options.targets = {{"y", {}, ScriptDtype::kInt64, 3}};
    return options;
  }
  static std::string refusal(const TorchscriptOptions& options,
                             const LossOptions& loss = LossOptions()) {
    try {
      torchscript_kind().check(Options(options), Origins());
      torchscript_kind().check_loss(Options(options), loss, Origins());
      check_torchscript(options, loss);
    } catch (const UsageError& error) {
      return std::string(error.what()) + " -> " + error.hint();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(Torchscript, HasTheNamesOfTheFile) {
  const ScriptModule module(Script::load(write(), {}));
  EXPECT_THAT(names(detail::trained_of(module)),
              UnorderedElementsAre("first", "last", "norm.weight", "norm.bias"));
  // What is frozen is kept as buffers are.
  EXPECT_THAT(names(detail::buffers_of(module)),
              UnorderedElementsAre("norm.running_mean", "norm.running_var", "scale"));
}

TEST_F(Torchscript, ComputesWithTheTensorsOfTheModule) {
  ScriptModule module(Script::load(write(), {}));
  module.eval();
  const at::Tensor x = at::randn({5, 6});
  const at::Tensor before = module.forward({x}).at(0);
  EXPECT_EQ(before.sizes(), at::IntArrayRef({5, 3}));
  const at::NoGradGuard no_grad;
  for (const NamedTensor& each : detail::trained_of(module)) {
    if (each.name == "last") each.tensor.set_data(each.tensor * 2);
  }
  EXPECT_TRUE(at::allclose(module.forward({x}).at(0), before * 2));
}

TEST_F(Torchscript, EvaluatesWithAnotherFileOverTheSameTensors) {
  const auto traced = write(0.5, true), other = write(0.5, false, "eval.pt");
  EXPECT_THAT(refusal(options(traced)), HasSubstr("gives other outputs each time in evaluation"));
  TorchscriptOptions both = options(traced);
  both.evaluation_path = other.string();
  EXPECT_EQ(refusal(both), "");
  ScriptModule module(Script::load(traced, other));
  const at::Tensor x = at::randn({5, 6});
  const at::NoGradGuard no_grad;
  for (const NamedTensor& each : detail::trained_of(module)) {
    each.tensor.set_data(at::zeros_like(each.tensor));
  }
  module.eval();
  EXPECT_EQ(module.forward({x}).at(0).abs().max().item<double>(), 0);
}

TEST_F(Torchscript, IsSavedWithOtherValues) {
  const auto from = write(), to = folder_.path() / "trained.pt";
  ScriptModule::save_with(from, to, {{"last", at::full({3, 4}, 7.0, at::kDouble)}});
  const ScriptModule module(Script::load(to, {}));
  for (const NamedTensor& each : detail::trained_of(module)) {
    if (each.name != "last") continue;
    EXPECT_EQ(each.tensor.scalar_type(), at::kFloat);
    EXPECT_TRUE(each.tensor.eq(7).all().item<bool>());
  }
}

TEST_F(Torchscript, StartsWithTheValuesOfTheFile) {
  const Model model = build_torchscript(options(write()), LossOptions(), 1, ModelLayout());
  ASSERT_EQ(model.units.size(), 1U);
  for (const ParameterSpec& spec : model.units[0]->specs()) {
    if (spec.name != "norm.bias") continue;
    EXPECT_TRUE(spec.initializer.values.eq(0.25).all().item<bool>());
    EXPECT_FALSE(spec.decays);
  }
}

TEST_F(Torchscript, IsRefusedByName) {
  const auto missing = folder_.path() / "missing.pt", text = folder_.path() / "text.pt";
  std::ofstream(text) << "no archive";
  EXPECT_THAT(refusal(options(missing)), HasSubstr("there is no file"));
  EXPECT_THAT(refusal(options(text)), HasSubstr("is no TorchScript that can be loaded here"));
  TorchscriptOptions wrong = options(write());
  wrong.inputs[0].shape = {5};
  EXPECT_THAT(refusal(wrong), HasSubstr("it was given Float [2, 5]"));
  wrong = options(write());
  wrong.targets[0].classes = 4;
  EXPECT_THAT(refusal(wrong), HasSubstr("returns [2, 3] for 2 samples, not [2, 4] as 'outputs'"));
  wrong.outputs = {{"a", {3}}, {"b", {3}}};
  EXPECT_THAT(refusal(wrong), HasSubstr("the loss takes [4] for the target 'y', not [3]"));
  wrong.outputs[0].shape = {4};
  EXPECT_THAT(refusal(wrong), HasSubstr("returns 1 tensor, not 2"));
}

TEST_F(Torchscript, IsRefusedWhereItsOwnLossIsNone) {
  const LossOptions none(none_kind());
  TorchscriptOptions own = options(write());
  EXPECT_THAT(refusal(own, none), HasSubstr("which tensor of forward() is the loss"));
  own.outputs = {{"loss"}};
  EXPECT_THAT(refusal(own, none), HasSubstr("forward() throws"));  // it takes no target
  test::write_script_with_loss(own.path);
  EXPECT_THAT(refusal(own, none), HasSubstr("returns 3 tensors, not 1"));
  own.outputs = {{"scores", {3}}, {"loss"}, {"count"}};
  EXPECT_THAT(refusal(own, none), HasSubstr("outputs.scores.shape: a loss is a number"));
  own.loss_output = "lss";
  EXPECT_THAT(refusal(own, none), HasSubstr("has no 'lss'; did you mean 'loss'?"));
  own.loss_output = "loss";
  own.weight_output = "loss";
  EXPECT_THAT(refusal(own, none), HasSubstr("'loss' is the loss itself"));
  own.weight_output = "count";
  EXPECT_EQ(refusal(own, none), "");
  own.outputs[0].shape = {4};
  EXPECT_THAT(refusal(own, none), HasSubstr("returns [2, 3] for 2 samples, not [2, 4]"));
  own.outputs = {{"loss"}, {"scores", {3}}, {"count"}};
  EXPECT_THAT(refusal(own, none), HasSubstr("returns [2, 3] as 'loss', which is no single number"));
  EXPECT_THAT(refusal(own), HasSubstr("loss_output is for loss = \"none\""));
}

TEST_F(Torchscript, GivesItsOwnLossAndWeightBehindItsPredictions) {
  TorchscriptOptions own = options(folder_.path() / "net.pt");
  test::write_script_with_loss(own.path);
  own.outputs = {{"scores", {3}}, {"loss"}, {"count"}};
  own.loss_output = "loss";
  own.weight_output = "count";
  const ModelTraits traits = torchscript_kind().traits(Options(own), none_kind());
  ASSERT_EQ(traits.output_tensors.size(), 1U);
  EXPECT_EQ(traits.output_tensors[0].name, "scores");
  EXPECT_EQ(traits.sample.tensors.size(), 2U);  // and no weights of samples
}

TEST_F(Torchscript, TakesTheTargetsOfItsLoss) {
  TorchscriptOptions values = options(write());
  values.targets = {{"y", {3}}};
  EXPECT_THAT(refusal(values), HasSubstr("targets.y: loss = \"cross_entropy\" takes classes"));
  EXPECT_EQ(refusal(values, LossOptions(mean_square_kind())), "");
  EXPECT_THAT(refusal(options(write()), LossOptions(mean_square_kind())),
              HasSubstr("targets.y: loss = \"mean_square\" takes numbers"));
  values.targets.push_back({"z", {3}});
  EXPECT_THAT(refusal(values, LossOptions(mean_square_kind())), HasSubstr("found 2"));
  values.targets = {{"x", {3}}};
  EXPECT_THAT(refusal(values, LossOptions(mean_square_kind())), HasSubstr("'x' is an input too"));
}

}  // namespace
}  // namespace troika
