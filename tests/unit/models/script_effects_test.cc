// What forward() of a TorchScript file may do beside computing outputs, and tensors that no
// training can keep: each is taken right, or refused by what it is.
#include <gmock/gmock.h>
#include <torch/script.h>
#include <troika/base/error.h>
#include <troika/models/torchscript/script_module.h>
#include <troika/models/torchscript/torchscript.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/stage.h>
#include <troika/param/arena.h>

#include "support/temporary_folder.h"

namespace troika {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ScriptEffectsOf : public testing::Test {
 protected:
  using Named = std::pair<const char*, at::Tensor>;

  // A module with these parameters, which are trained, and buffers.
  void write(const std::string& forward, const std::vector<Named>& parameters,
             const std::vector<Named>& buffers = {}) {
    torch::jit::Module net("net");
    net.register_attribute("training", c10::BoolType::get(), true);
    for (const auto& [name, value] : parameters) {
      net.register_parameter(name, value.detach().requires_grad_(), /*is_buffer=*/false);
    }
    for (const auto& [name, value] : buffers) net.register_buffer(name, value);
    net.define("def forward(self, x):\n" + forward);
    net.save(path());
  }
  std::string path() { return (folder_.path() / "net.pt").string(); }
  static Named weight() { return {"w", at::linspace(-1, 1, 18).view({3, 6})}; }

  TorchscriptOptions options(std::int64_t classes = 0) {
    TorchscriptOptions options;
    options.path = path();
    options.inputs = {{"x", {6}}};
    if (classes > 0) options.inputs = {{"x", {6}, ScriptDtype::kInt64, classes}};
    options.targets = {{"y", {}, ScriptDtype::kInt64, 3}};
    return options;
  }
  std::string refusal(std::int64_t classes = 0) {
    try {
      check_torchscript(options(classes), LossOptions());
    } catch (const UsageError& error) {
      return std::string(error.what()) + " -> " + error.hint();
    }
    return "";
  }
  Tensors given(const Tensors& inputs, Mode mode = Mode::kEvaluate) {
    ScriptModule module(Script::load(path(), {}));
    module.train(mode == Mode::kTrain);
    return module.forward(inputs);
  }

  TemporaryFolder folder_;
};

TEST_F(ScriptEffectsOf, InputsThatAreWrittenToAreCopied) {
  for (const char* const body :
       {"    x.mul_(2.0)\n    return torch.linear(x, self.w)\n",
        "    y = x.view([-1, 6])\n    y[0, 0] = 7.0\n    return torch.linear(x, self.w)\n",
        "    if self.training:\n        x += 1.0\n    return torch.linear(x, self.w)\n"}) {
    write(body, {weight()});
    EXPECT_EQ(refusal(), "") << body;
    for (const Mode mode : {Mode::kTrain, Mode::kEvaluate}) {
      const at::Tensor x = at::ones({2, 6});
      (void)given({x}, mode);
      EXPECT_TRUE(at::equal(x, at::ones({2, 6}))) << body;
    }
  }
  write("    x.mul_(2.0)\n    return torch.linear(x, self.w)\n", {weight()});
  const at::Tensor x = at::ones({2, 6}).requires_grad_();  // as a unit behind others gets it
  given({x}).at(0).sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), 2 * weight().second.sum(0).expand({2, 6})));
}

TEST_F(ScriptEffectsOf, InputsOfOtherModulesAreNot) {
  write("    self.seen.add_(1)\n    return torch.linear(x, self.w)\n", {weight()},
        {{"seen", at::zeros({1})}});
  EXPECT_FALSE(ScriptEffects(torch::jit::load(path())).writes_to(0));
  write("    y = x * 1.0\n    y.mul_(2.0)\n    return torch.linear(y, self.w)\n", {weight()});
  EXPECT_FALSE(ScriptEffects(torch::jit::load(path())).writes_to(0));
}

// As forces from an energy: the gradient of forces by the weights is a second derivative.
TEST_F(ScriptEffectsOf, ForcesAreTrained) {
  write(R"(
    x.requires_grad_(True)
    energy = torch.tanh(torch.linear(x, self.w)).sum()
    forces = torch.autograd.grad([energy], [x], create_graph=True)[0]
    assert forces is not None
    return forces[:, :3]
)",
        {weight()});
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(ScriptEffects(torch::jit::load(path())).differentiates());
  const at::Tensor x = at::linspace(0, 1, 12).view({2, 6});
  const at::Tensor w = weight().second;
  const at::Tensor hidden = at::tanh(at::linear(x, w));
  const at::Tensor forces = at::matmul(1 - hidden * hidden, w).slice(1, 0, 3);
  const at::NoGradGuard no_grad;
  const Tensors found = given({x});
  EXPECT_FALSE(found.at(0).requires_grad());
  EXPECT_FALSE(x.requires_grad());
  EXPECT_TRUE(at::allclose(found.at(0), forces, 1e-5, 1e-6));
}

TEST_F(ScriptEffectsOf, ComplexTensorsAreRefusedByName) {
  const at::Tensor k = at::complex(at::ones({6}), at::ones({6}));
  const std::string body = "    return torch.linear(torch.abs(x * self.k).to(x.dtype), self.w)\n";
  write(body, {weight(), {"k", k}});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("parameter 'k' is complex, ComplexFloat"),
                               HasSubstr("torch.view_as_real()")));
  write(body, {weight()}, {{"k", k.to(at::kComplexDouble)}});
  EXPECT_THAT(refusal(), HasSubstr("buffer 'k' is complex, ComplexDouble"));
  write("    return torch.complex(x, x)[:, :3] * self.w.sum()\n", {weight()});
  EXPECT_THAT(refusal(), HasSubstr("returns ComplexFloat as 'outputs', which is float32"));
}

TEST_F(ScriptEffectsOf, ElementsThatShareMemoryAreRefusedOrCopied) {
  const std::string body = "    return torch.linear(x, self.w) + self.b\n";
  const Named zeros = {"b", at::zeros({3})};
  write(body, {{"w", at::ones({1}).expand({3, 6})}}, {zeros});
  EXPECT_THAT(refusal(), HasSubstr("the elements of parameter 'w' share memory"));
  write(body, {{"w", at::arange(8.0).to(at::kFloat).as_strided({3, 6}, {1, 1})}}, {zeros});
  EXPECT_THAT(refusal(), HasSubstr("the elements of parameter 'w' share memory"));
  write(body, {{"w", at::ones({6, 3}).t()}}, {zeros});
  EXPECT_EQ(refusal(), "");
  write(body, {weight()}, {{"b", at::ones({1}).expand({3})}});
  EXPECT_EQ(refusal(), "");
  const Script script = Script::load(path(), {});
  for (const auto& each : script.module.named_buffers()) {
    each.value[0] = 5;
    EXPECT_EQ(each.value.sum().item<double>(), 7);
  }
}

// Python's batch_norm() is compiled into a script with this check.
TEST_F(ScriptEffectsOf, BatchNormWithoutStatisticsIsNamed) {
  write(R"(
    assert x.size(0) > 1, "Expected more than 1 value per channel when training"
    return torch.linear(x, self.w)
)",
        {weight()});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("forward() takes 2 samples, but not 1"),
                               HasSubstr("Expected more than 1 value per channel"),
                               HasSubstr("-> batch-norm without running statistics")));
}

TEST_F(ScriptEffectsOf, IdsBeyondAnEmbeddingAreNamed) {
  write("    return torch.embedding(self.table, x).sum(1)\n", {{"table", at::rand({11, 3})}});
  EXPECT_EQ(refusal(11), "");
  EXPECT_THAT(refusal(12), AllOf(HasSubstr("takes no 11 in 'x', whose classes = 12"),
                                 HasSubstr("that of the embedding's rows")));
  EXPECT_THAT(refusal(1000), HasSubstr("takes no 999 in 'x', whose classes = 1000"));
}

TEST_F(ScriptEffectsOf, ATypeInTheOperatorsIsNamed) {
  write("    return torch.linear(x.to(6), self.w)\n", {weight()});  // 6 is float32
  EXPECT_EQ(refusal(), "");
  ModelLayout layout;
  layout.type = at::kDouble;
  UnitStage stage(std::move(build_torchscript(options(), LossOptions(), 1, layout).units), 0);
  Arena arena(stage.specs(), {at::kDouble, at::kDouble}, Group());
  stage.bind(arena);
  arena.initialize(3);
  Saved saved;
  saved.mode = Mode::kEvaluate;
  saved.microbatch.tensors.set("x", at::ones({2, 6}, at::kDouble));
  saved.microbatch.tensors.set("y", at::zeros({2}, at::kLong));
  UnitHooks hooks;
  try {
    (void)stage.forward({}, saved, hooks);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("has float32 written into its operators"),
                                    HasSubstr("precision = \"fp64\" does not change")));
    EXPECT_THAT(error.hint(), HasSubstr("train with precision = \"fp32\""));
  }
}

}  // namespace
}  // namespace troika
