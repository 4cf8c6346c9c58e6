// What the layout of a job does to the units of a model: what is refused, and what the specs say.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/comm/engines.h>
#include <troika/models/gpt/gpt.h>
#include <troika/models/mlp/options.h>

#include <map>
#include <numeric>

namespace troika {
namespace {

TensorAxis axis(int size, int index) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {make_group("tensor", ranks, index, {.engine = "fake"}), Seconds(1)};
}

GptOptions gpt() {
  GptOptions options;
  options.layers = 1;
  options.dim = 12;
  options.heads = 6;
  options.kv_heads = 2;
  options.head_dim = 2;
  options.ffn_dim = 10;
  options.vocab_size = 251;
  options.seq_len = 37;
  options.bias = true;
  options.qk_norm = true;
  options.norm = Norm::kLayerNorm;
  options.position = Position::kLearned;
  return options;
}

std::map<std::string, ParameterSpec> specs_of(const Model& model) {
  std::map<std::string, ParameterSpec> specs;
  for (const auto& unit : model.units) {
    for (ParameterSpec& spec : unit->specs()) specs[spec.name] = std::move(spec);
  }
  return specs;
}

TEST(ModelLayout, RefusesMoreTensorRanksThanHeads) {
  try {
    (void)build_gpt(gpt(), 1, {.tensor = axis(8, 0)});
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "internal error: more tensor ranks than heads");
  }
  EXPECT_EQ(build_gpt(gpt(), 1, {.tensor = axis(6, 5)}).units.size(), 3u);
}

TEST(ModelLayout, RefusesToSplitAPerceptron) {
  const ModelOptions perceptron(mlp_kind(), MlpOptions{3, {}, 3});
  try {
    (void)build_model(perceptron, 1, {.tensor = axis(2, 0)});
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "internal error: more tensor ranks than a model has");
  }
}

// Whatever the cut, ranks together count every element of the model once.
TEST(ModelLayout, EveryElementIsCountedOnce) {
  const auto whole = specs_of(build_gpt(gpt(), 1));
  for (const int ranks : {2, 3, 4, 5, 6}) {
    std::map<std::string, std::int64_t> counted;
    for (int rank = 0; rank < ranks; ++rank) {
      for (const auto& [name, spec] :
           specs_of(build_gpt(gpt(), 1, {.tensor = axis(ranks, rank)}))) {
        counted[name] += spec.owned.value_or(spec.local_count());
        EXPECT_EQ(spec.shape, whole.at(name).shape);
      }
    }
    for (const auto& [name, spec] : whole) EXPECT_EQ(counted[name], spec.global_count()) << name;
  }
}

TEST(ModelLayout, SpecsSayWhoseGradientsArePartialSums) {
  const auto specs = specs_of(build_gpt(gpt(), 1, {.tensor = axis(4, 1)}));
  const auto is_partial = [&](const std::string& name) {
    return std::ranges::count(specs.at(name).partial_over, Axis::kTensor) == 1;
  };
  for (const char* name :
       {"model.norm.weight", "model.norm.bias", "model.embed_positions.weight",
        "model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.o_proj.bias",
        "model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.k_norm.bias",
        "model.layers.0.mlp.down_proj.bias"}) {
    EXPECT_TRUE(is_partial(name)) << name;
    EXPECT_EQ(specs.at(name).owned, 0) << name;
    EXPECT_FALSE(specs.at(name).slice) << name;
  }
  // Two ranks read the first of the two heads of keys and values, this one both.
  for (const char* part : {"k_proj", "v_proj"}) {
    const std::string name = "model.layers.0.self_attn." + std::string(part);
    EXPECT_TRUE(is_partial(name + ".weight"));
    EXPECT_EQ(specs.at(name + ".weight").slice, (Slice{0, 0, 4}));
    EXPECT_EQ(specs.at(name + ".weight").owned, 2 * 12);
    EXPECT_EQ(specs.at(name + ".bias").owned, 2);
  }
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.mlp.up_proj.bias", "model.embed_tokens.weight", "lm_head.weight"}) {
    EXPECT_FALSE(is_partial(name)) << name;
    EXPECT_TRUE(specs.at(name).slice) << name;
    EXPECT_FALSE(specs.at(name).owned) << name;
  }
  EXPECT_TRUE(specs.at("model.norm.weight").keep_fp32);
}

TEST(ModelLayout, ATiedWeightOfAnotherStageIsAReplica) {
  const Model model = build_gpt(gpt(), 1, {.tensor = {}, .tied_across_stages = true});
  const ParameterSpec original = model.units.front()->specs().front();
  const ParameterSpec replica = model.units.back()->specs().back();
  EXPECT_EQ(replica.name, original.name);
  EXPECT_TRUE(replica.tied_replica);
  EXPECT_FALSE(original.tied_replica);
  EXPECT_TRUE(replica.tied_to.empty());
  for (const ParameterSpec& spec : {original, replica}) {
    EXPECT_THAT(spec.partial_over, testing::ElementsAre(Axis::kPipeline));
  }
  EXPECT_TRUE(initial_values(replica, 3).equal(initial_values(original, 3)));

  GptOptions untied = gpt();
  untied.tied_embeddings = false;
  const Model apart = build_gpt(untied, 1, {.tensor = {}, .tied_across_stages = true});
  EXPECT_EQ(apart.units.back()->specs().back().name, "lm_head.weight");
  EXPECT_TRUE(apart.units.front()->specs().front().partial_over.empty());
}

TEST(ModelLayout, UnitsTellTheShapeOfTheirSlice) {
  const Model model = build_gpt(gpt(), 1, {.tensor = axis(2, 1)});
  Microbatch batch;
  batch.tensors.set("input_ids", at::zeros({3, 37}, at::kLong));
  for (const std::size_t unit : {0u, 1u}) {
    EXPECT_EQ(model.units[unit]->outputs(batch).at(0).shape, (std::vector<std::int64_t>{55, 12}));
  }
  EXPECT_EQ(model.units[2]->inputs(batch).at(0).shape, (std::vector<std::int64_t>{55, 12}));
}

}  // namespace
}  // namespace troika
