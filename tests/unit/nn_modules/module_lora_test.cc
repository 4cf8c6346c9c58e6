// Pairs beside layers of a module of the user's own: autograd's gradients are those of the formula.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/nn/module_lora.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

struct Net : torch::nn::Module {
  Net() {
    fc1 = register_module("fc1", torch::nn::Linear(5, 4));
    fc2 = register_module("fc2", torch::nn::Linear(4, 3));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return fc2(torch::tanh(fc1(x))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};

at::Tensor formula(Net& net, const at::Tensor& a, const at::Tensor& b, const at::Tensor& x) {
  const at::Tensor first =
      at::linear(x, net.fc1->weight, net.fc1->bias) + 2.5 * at::linear(at::linear(x, a), b);
  return at::linear(at::tanh(first), net.fc2->weight, net.fc2->bias);
}

TEST(ModuleLora, GivesTheGradientsOfTheFormula) {
  torch::manual_seed(3);
  Net net;
  ModuleLora lora(net, {.rank = 2, .alpha = 5, .match = {"fc1"}}, 11);
  EXPECT_EQ(lora.adapted(), std::vector<std::string>{"fc1"});
  EXPECT_EQ(lora.layers(), (std::vector<std::string>{"fc1", "fc2"}));
  const auto names = net.named_parameters();
  EXPECT_TRUE(names["fc1.lora_A.weight"].is_same(lora.parameters()[0]));
  EXPECT_TRUE(names["fc1.lora_B.weight"].requires_grad());
  EXPECT_FALSE(names["fc1.weight"].requires_grad() || names["fc2.bias"].requires_grad());
  const at::Tensor x = torch::randn({6, 5}, at::kDouble);
  const at::Tensor before = net.forward(x);
  {
    const auto applied = lora.apply();  // B is zero
    EXPECT_TRUE(net.forward(x).equal(before));
  }
  at::Tensor b = lora.parameters()[1];
  {
    const at::NoGradGuard no_grad;
    b.normal_();
  }
  const at::Tensor expected = formula(net, lora.parameters()[0], b, x);
  const auto gradients = torch::autograd::grad({expected.square().sum()}, lora.parameters());
  {
    const auto applied = lora.apply();
    const at::Tensor found = net.forward(x);
    EXPECT_TRUE(found.allclose(expected, 1e-12, 1e-13));
    found.square().sum().backward();
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(lora.parameters()[i].grad().allclose(gradients[i], 1e-11, 1e-12));
  }
  EXPECT_FALSE(net.fc1->weight.grad().defined());
  EXPECT_TRUE(net.forward(x).equal(before));
  lora.merge();
  EXPECT_TRUE(net.forward(x).allclose(expected, 1e-12, 1e-13));
}

// A refusal leaves the module as it was.
TEST(ModuleLora, RefusesWhatItCannotDo) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  Net net;
  const std::vector<std::string> before = net.named_parameters().keys();
  const std::vector<std::pair<LoraOptions, std::string>> refused = {
      {{.dropout = 0.1}, "LoraOptions::dropout"},
      {{.match = {"fc1", "encoder.*"}}, "'encoder.*' fits no linear layer"},
      {{.match = {}}, "match: no linear layer would get a pair"},
      {{.rank = 0}, "rank: has to be 1 or more"},
      {{.rank = -3}, "rank: has to be 1 or more"},
      {{.alpha = 0}, "alpha: has to be above 0"},
      {{.alpha = kNone}, "alpha: has to be above 0"}};
  for (const auto& [options, expected] : refused) {
    try {
      const ModuleLora lora(net, options);
      ADD_FAILURE() << expected;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
    EXPECT_EQ(net.named_parameters().keys(), before);
    for (const at::Tensor& each : net.parameters()) EXPECT_TRUE(each.requires_grad()) << expected;
  }
}

struct Tied : torch::nn::Module {
  Tied() {
    table = register_module("table", torch::nn::Embedding(7, 4));
    head = register_module("head", torch::nn::Linear(4, 7));
    body = register_module("body", torch::nn::Linear(4, 4));
    head->weight = table->weight;  // its own parameter stays registered
    twice = register_module("twice", torch::nn::Linear(4, 4));
    register_module("again", twice);
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear head{nullptr}, body{nullptr}, twice{nullptr};
};

TEST(ModuleLora, LeavesOutWeightsWithASecondName) {
  Tied net;
  for (const char* name : {"head", "again", "twice"}) {
    EXPECT_THROW(ModuleLora(net, {.match = {"body", name}}), UsageError) << name;
  }
  EXPECT_TRUE(net.head->weight.requires_grad());
  const ModuleLora lora(net, {});
  EXPECT_EQ(lora.adapted(), std::vector<std::string>{"body"});
}

TEST(LoraTargets, SayWhichModelsHaveLinearLayers) {
  try {
    LoraTargets({}, 1).check();
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_NE(error.hint().find("an mlp with loss = \"expression\" has none"), std::string::npos);
  }
}

}  // namespace
}  // namespace troika
