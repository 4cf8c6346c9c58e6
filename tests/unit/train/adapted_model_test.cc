// A whole model of a base and the pairs that a run has saved.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/checkpoint/tensors.h>
#include <troika/models/exported/options.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/adapted_model.h>
#include <troika/train/model_part.h>

#include "unit/exported/program_file.h"

namespace troika {
namespace {

// relu(x W^T + b) with W = 1 to 6, which the program freezes: then W is a buffer, and saved beside
// the pair.
class AdaptedModel : public testing::Test {
 protected:
  Recipe recipe() {
    test::Json program = test::linear_program(), weights = test::linear_weights();
    test::Json& graph = program["graph_module"]["graph"];
    test::Json& specs = program["graph_module"]["signature"]["input_specs"];
    graph["inputs"].insert(graph["inputs"].begin(), test::tensor_argument("p_bias"));
    graph["nodes"][0]["inputs"].push_back(test::named("bias", test::tensor_argument("p_bias")));
    specs.insert(specs.begin(),
                 test::Json{{"parameter",
                             {{"arg", {{"name", "p_bias"}}}, {"parameter_name", "body.bias"}}}});
    const test::Json weight = weights["config"]["body.weight"];
    test::Json& bias = weights["config"]["body.bias"];
    bias = weight;
    bias["tensor_meta"] = test::meta({2}, /*requires_grad=*/true);
    bias["tensor_meta"]["storage_offset"] = {{"as_int", 6}};
    weights["config"]["body.weight"]["tensor_meta"]["requires_grad"] = false;
    test::write_program(folder_ / "net.pt2", program.dump(), weights.dump());
    return parse_recipe("name = \"r\"\n[model]\nkind = \"exported\"\npath = \"" +
                            (folder_ / "net.pt2").string() +
                            "\"\ntargets = { y = { classes = 2 } }\n"
                            "[adapter]\nkind = \"lora\"\nrank = 1\nalpha = 3\n"
                            "[data]\nkind = \"random\"\n[train]\nprecision = \"fp32\"\n",
                        "a recipe")
        .recipe;
  }
  // The weight of the model that these tensors make.
  at::Tensor merged(const std::vector<NamedTensor>& saved) {
    const Recipe adapted = recipe();
    save_tensors(folder_ / "model.safetensors", saved, {});
    ModelPart part(merged_recipe(adapted), ModelPlacement());
    std::vector<NamedTensor> buffers;
    for (const ModelPart::Buffer& each : part.buffers()) {
      buffers.push_back({each.name, each.tensor});
    }
    load_trained(adapted, folder_ / "model.safetensors", part.arena(), buffers);
    return buffers.at(0).tensor.clone();
  }

  TemporaryFolder folder_;
  const at::Tensor weight_ = at::arange(1, 7, at::kFloat).view({2, 3});
  const at::Tensor a_ = at::tensor({1.0F, 0.0F, 2.0F}).view({1, 3});
  const at::Tensor b_ = at::tensor({1.0F, -1.0F}).view({2, 1});
};

TEST_F(AdaptedModel, AddsPairsToWeightsThatWereSavedBeside) {
  const at::Tensor found =
      merged({{"body.lora_A.weight", a_}, {"body.lora_B.weight", b_}, {"body.weight", weight_}});
  EXPECT_TRUE(found.equal(weight_ + 3 * at::mm(b_, a_))) << found;
  EXPECT_TRUE(merged({{"body.lora_A.weight", a_}, {"body.lora_B.weight", b_}}).equal(found));
}

TEST_F(AdaptedModel, RefusesABufferOfAnotherShape) {
  try {
    (void)merged(
        {{"body.lora_A.weight", a_}, {"body.lora_B.weight", b_}, {"body.weight", at::ones({3})}});
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("tensor 'body.weight' has another shape"));
  }
}

}  // namespace
}  // namespace troika
