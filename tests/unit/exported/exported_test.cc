#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/exported/archive.h>
#include <troika/exported/module.h>
#include <troika/exported/save.h>
#include <troika/nn/lora_options.h>

#include <fstream>
#include <functional>

#include "program_file.h"
#include "support/temporary_folder.h"

namespace troika {
namespace {

using test::Json;
using ::testing::HasSubstr;

class Exported : public ::testing::Test {
 protected:
  // The error that a file with this program is refused with.
  std::string refusal(const std::function<void(Json&)>& change) {
    Json program = test::linear_program();
    change(program);
    test::write_program(path_, program.dump());
    return refusal();
  }
  std::string refusal() {
    try {
      (void)load_exported(path_)->forward({at::ones({4, 3})});
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  }
  static Json& first_node(Json& program) { return program["graph_module"]["graph"]["nodes"][0]; }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "net.pt2";
};

TEST_F(Exported, TakesPairsBesideLinearLayers) {
  test::write_program(path_, test::linear_program().dump());
  const auto module = load_exported(path_);
  module->to(at::kDouble);
  LoraTargets targets({.rank = 2, .alpha = 5}, 3);
  module->adapt(targets);
  EXPECT_EQ(targets.adapted(), std::vector<std::string>{"body"});
  const auto parameters = module->named_parameters();
  ASSERT_EQ(parameters.size(), 3u);
  const at::Tensor &weight = parameters["body.weight"], &a = parameters["body.lora_A.weight"];
  at::Tensor b = parameters["body.lora_B.weight"];
  {
    const at::NoGradGuard no_grad;
    b.fill_(0.5);
  }
  const at::Tensor x = at::arange(6, at::kDouble).view({2, 3});
  const at::Tensor expected =
      at::relu(at::linear(x, weight) + 2.5 * at::linear(at::linear(x, a), b));
  EXPECT_TRUE(at::allclose(module->forward({x})[0], expected));
}

// A pair beside an embedding's weight would change the embedding where it is merged.
TEST_F(Exported, LeavesOutWeightsThatAnythingElseReads) {
  Json program = test::linear_program();
  const auto write = [&](const char* target, Json inputs) {
    Json changed = program;
    changed["graph_module"]["graph"]["nodes"].push_back(
        test::node(target, std::move(inputs), "other"));
    changed["graph_module"]["graph"]["tensor_values"]["other"] = test::meta({2, 3});
    test::write_program(path_, changed.dump());
  };
  const auto adapted = [&](const std::string& pattern) {
    LoraTargets targets({.match = {pattern}}, 3);
    load_exported(path_)->adapt(targets);
    return targets.adapted();
  };
  const auto body = std::vector<std::string>{"body"};
  write("torch.ops.aten.relu.default", {test::named("self", test::tensor_argument("p_weight"))});
  EXPECT_TRUE(adapted("*").empty());
  for (const char* name : {"body", "b*"}) {
    try {
      EXPECT_TRUE(adapted(name).empty()) << name;
      EXPECT_STREQ(name, "b*");
    } catch (const UsageError& error) {
      EXPECT_STREQ(error.what(),
                   "[adapter] match: 'body' names 'body', whose weight something else in the model "
                   "has, too");
    }
  }
  // As the input of a linear operator it is no weight; as that of two it is one.
  write("torch.ops.aten.linear.default",
        {test::named("input", test::tensor_argument("p_weight")),
         test::named("weight", test::tensor_argument("p_weight"))});
  EXPECT_TRUE(adapted("*").empty());
  write("torch.ops.aten.linear.default",
        {test::named("input", test::tensor_argument("x")),
         test::named("weight", test::tensor_argument("p_weight"))});
  EXPECT_EQ(adapted("body"), body);
  // A result of the program.
  test::write_program(path_, program.dump());
  EXPECT_EQ(adapted("*"), body);
  program["graph_module"]["graph"]["tensor_values"]["p_weight"] = test::meta({2, 3});
  program["graph_module"]["graph"]["outputs"][0] = test::tensor_argument("p_weight");
  program["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"] =
      test::tensor_argument("p_weight");
  test::write_program(path_, program.dump());
  EXPECT_TRUE(adapted("*").empty());
}

// As where lm_head.weight and wte.weight are one: the second name is that of the linear layer, or
// of nothing.
TEST_F(Exported, LeavesOutWeightsWithASecondName) {
  Json program = test::linear_program(), weights = test::linear_weights();
  Json& graph = program["graph_module"]["graph"];
  graph["inputs"].insert(graph["inputs"].begin(), test::tensor_argument("p_tied"));
  Json& specs = program["graph_module"]["signature"]["input_specs"];
  specs.insert(
      specs.begin(),
      Json{{"parameter", {{"arg", {{"name", "p_tied"}}}, {"parameter_name", "tied.weight"}}}});
  weights["config"]["tied.weight"] = weights["config"]["body.weight"];
  test::write_program(path_, program.dump(), weights.dump());
  LoraTargets all({}, 3), named({.match = {"body"}}, 3);
  load_exported(path_)->adapt(all);
  EXPECT_TRUE(all.adapted().empty());
  EXPECT_THROW(load_exported(path_)->adapt(named), UsageError);
}

TEST_F(Exported, RunsAndIsTrained) {
  test::write_program(path_, test::linear_program().dump());
  const auto module = load_exported(path_);
  ASSERT_EQ(module->named_parameters().keys(), std::vector<std::string>{"body.weight"});
  EXPECT_EQ(module->takes()[0].name, "x");
  EXPECT_EQ(module->takes()[0].sizes[0], std::nullopt);
  EXPECT_EQ(module->gives()[0].sizes[1], 2);
  const at::Tensor x = at::tensor({1.0, 0.0, -1.0, 0.5, 0.5, 0.5}, at::kFloat).view({2, 3});
  const at::Tensor weight = module->parameters()[0];
  EXPECT_TRUE(at::equal(module->forward({x})[0], at::relu(at::linear(x, weight))));
  module->forward({x})[0].sum().backward();
  EXPECT_TRUE(at::allclose(weight.grad()[1], x[1]));  // of the first sample relu gives 0
  module->to(at::kDouble);
  EXPECT_EQ(module->forward({x.to(at::kDouble)})[0].scalar_type(), at::kDouble);
}

TEST_F(Exported, IsWrittenWithOtherValues) {
  test::write_program(path_, test::linear_program().dump());
  const auto copy = folder_.path() / "copy.pt2";
  const at::Tensor values = at::full({2, 3}, 0.5, at::kDouble);
  save_exported(path_, copy, {{"body.weight", values}});
  EXPECT_TRUE(at::equal(load_exported(copy)->parameters()[0], values.to(at::kFloat)));
  EXPECT_EQ(ExportArchive(copy).content("models/model.json").size(),
            ExportArchive(path_).content("models/model.json").size());
}

TEST_F(Exported, RefusesOperatorsThatAreNotAllowed) {
  const auto calling = [&](const std::string& target) {
    return refusal([&](Json& program) { first_node(program)["target"] = target; });
  };
  for (const char* target : {"torch.ops.aten.from_file.default",
                             "torch.ops.aten.set_.source_Tensor", "torch.ops.mine.op.default",
                             "os.system", "torch.ops.aten.linear", "torch.ops.higher_order.cond"}) {
    EXPECT_THAT(calling(target), HasSubstr("net.pt2': node 'linear' ('net.py line 7: y = f(x)'): "
                                           "calls '" +
                                           std::string(target) + "', which is not"));
  }
  EXPECT_THAT(calling("torch.ops.aten.linear.never"),
              HasSubstr("which this LibTorch does not have"));
}

TEST_F(Exported, RefusesWhatIsNoProgram) {
  const auto changed = [&](auto change) { return refusal(change); };
  EXPECT_THAT(changed([](Json& p) { p.erase("graph_module"); }), HasSubstr("holds no program"));
  EXPECT_THAT(changed([](Json& p) { first_node(p)["inputs"].erase(1); }),
              HasSubstr("has no argument 'weight'"));
  EXPECT_THAT(changed([](Json& p) { first_node(p)["inputs"][1]["name"] = "wait"; }),
              HasSubstr("has no argument 'weight'"));
  EXPECT_THAT(changed([](Json& p) {
                first_node(p)["inputs"].push_back(test::named("more", {{"as_int", 1}}));
              }),
              HasSubstr("has an argument 'more', which the operator has not"));
  EXPECT_THAT(
      changed([](Json& p) { first_node(p)["inputs"][0]["arg"]["as_tensor"]["name"] = "y"; }),
      HasSubstr("no value is called 'y'"));
  EXPECT_THAT(changed([](Json& p) { first_node(p)["outputs"][0]["as_tensor"]["name"] = "x"; }),
              HasSubstr("two values are called 'x'"));
  EXPECT_THAT(changed([](Json& p) { p["graph_module"]["signature"]["input_specs"].erase(1); }),
              HasSubstr("its signature is not of its graph"));
  EXPECT_THAT(changed([](Json& p) {
                first_node(p)["target"] = "torch.ops.aten.bmm.default";
                first_node(p)["inputs"] = {test::named("self", test::tensor_argument("x")),
                                           test::named("mat2", test::tensor_argument("x"))};
              }),
              HasSubstr("node 'linear' ('net.py line 7: y = f(x)'): batch1 must be a 3D tensor"));
  EXPECT_THAT(changed([](Json& p) {
                first_node(p) = test::node("torch.ops.aten.add_.Tensor",
                                           {test::named("self", test::tensor_argument("x")),
                                            test::named("other", test::tensor_argument("x"))},
                                           "linear");
              }),
              HasSubstr("writes to its input 'x'"));
  EXPECT_THAT(changed([](Json& p) { p["graph_module"] = 5; }), HasSubstr("is not as this version"));
  EXPECT_THAT(changed([](Json& p) {
                first_node(p)["inputs"][0]["arg"] = {{"as_words", 1}};
              }),
              HasSubstr("net.pt2"));
  std::string deep(100000, '[');
  test::write_program(path_, deep);
  EXPECT_THAT(refusal(), HasSubstr("it is nested too deeply"));
}

TEST_F(Exported, RefusesValuesOutsideOfTheirRecord) {
  const auto weights = [&](const std::function<void(Json&)>& change) {
    Json config = test::linear_weights();
    change(config["config"]["body.weight"]);
    test::write_program(path_, test::linear_program().dump(), config.dump());
    return refusal();
  };
  EXPECT_EQ(weights([](Json&) {}), "");
  const char* too_little = "holds less of 'weights/weight_0' than its sizes say";
  for (const std::int64_t size : {3L, 1L << 40, (1L << 62) + 1, -1L}) {
    EXPECT_THAT(weights([&](Json& w) { w["tensor_meta"]["sizes"][0]["as_int"] = size; }),
                HasSubstr(too_little));
  }
  EXPECT_THAT(weights([](Json& w) { w["tensor_meta"]["storage_offset"]["as_int"] = 3; }),
              HasSubstr(too_little));
  EXPECT_THAT(weights([](Json& w) {  // 10^9 elements of one
                w["tensor_meta"]["sizes"][0]["as_int"] = 1000000000;
                w["tensor_meta"]["strides"][0]["as_int"] = 0;
              }),
              HasSubstr(too_little));
  EXPECT_THAT(weights([](Json& w) { w["path_name"] = "weight_1"; }),
              HasSubstr("has no record 'data/weights/weight_1'"));
  EXPECT_THAT(weights([](Json& w) { w["use_pickle"] = true; }), HasSubstr("is pickled"));
}

// A record is a storage: here it has a weight, and behind it a bias.
TEST_F(Exported, TakesTensorsThatShareARecord) {
  Json program = test::linear_program(), weights = test::linear_weights();
  Json& module = program["graph_module"];
  module["graph"]["inputs"].push_back(test::tensor_argument("p_bias"));
  first_node(program)["inputs"].push_back(test::named("bias", test::tensor_argument("p_bias")));
  module["signature"]["input_specs"].push_back(
      {{"parameter", {{"arg", {{"name", "p_bias"}}}, {"parameter_name", "body.bias"}}}});
  weights["config"]["body.weight"]["tensor_meta"] = test::meta({1, 3}, true);
  weights["config"]["body.bias"] = weights["config"]["body.weight"];
  weights["config"]["body.bias"]["tensor_meta"] = test::meta({2}, true);
  weights["config"]["body.bias"]["tensor_meta"]["storage_offset"]["as_int"] = 4;
  test::write_program(path_, program.dump(), weights.dump());
  const auto values = load_exported(path_)->named_parameters();
  EXPECT_TRUE(at::equal(values["body.weight"], at::tensor({1.0F, 2.0F, 3.0F}).view({1, 3})));
  EXPECT_TRUE(at::equal(values["body.bias"], at::tensor({5.0F, 6.0F})));
  const auto copy = folder_.path() / "copy.pt2";
  save_exported(path_, copy, {{"body.weight", at::full({1, 3}, 9.0F)}});
  const auto saved = load_exported(copy)->named_parameters();
  EXPECT_TRUE(at::equal(saved["body.weight"], at::full({1, 3}, 9.0F)));
  EXPECT_TRUE(at::equal(saved["body.bias"], at::tensor({5.0F, 6.0F})));
  weights["config"]["body.bias"]["tensor_meta"]["storage_offset"]["as_int"] = 2;
  test::write_program(path_, program.dump(), weights.dump());
  EXPECT_THAT(refusal(), HasSubstr("shares memory with"));
}

TEST_F(Exported, RefusesNumbersInPlaceOfTypes) {
  for (const char* argument : {"dtype", "layout"}) {
    EXPECT_THAT(refusal([&](Json& program) {
                  first_node(program) = test::node("torch.ops.aten.zeros_like.default",
                                                   {test::named("self", test::tensor_argument("x")),
                                                    test::named(argument, {{"as_int", 1}})},
                                                   "linear");
                }),
                HasSubstr("as '" + std::string(argument) + "'"));
  }
}

// Every cut and every damaged byte is an error of ours, or another program.
TEST_F(Exported, IsCheckedBeforeUse) {
  test::write_program(path_, test::linear_program().dump());
  const std::string whole = read_file(path_, 1 << 20);
  const auto damaged = folder_.path() / "damaged.pt2";
  const auto try_to_run = [&](const std::string& bytes) {
    std::ofstream(damaged, std::ios::binary) << bytes;
    try {
      (void)load_exported(damaged)->forward({at::ones({2, 3})});
      return true;
    } catch (const UsageError&) {
      return false;
    }
  };
  EXPECT_TRUE(try_to_run(whole));
  constexpr std::size_t kCuts = 200, kBytes = 1500;
  for (std::size_t i = 0; i < kCuts; ++i) {
    EXPECT_FALSE(try_to_run(whole.substr(0, i * (whole.size() - 1) / kCuts)));
  }
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < kBytes; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::string bytes = whole;
    bytes[(state >> 33) % bytes.size()] = static_cast<char>(state >> 25);
    (void)try_to_run(bytes);
  }
}

}  // namespace
}  // namespace troika
