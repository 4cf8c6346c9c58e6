// The gradients that the layers work out by hand against finite differences of the loss, in fp64,
// for every choice of the recipe: (L(p + h d) - L(p - h d)) / 2h must be the gradient's product
// with d.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/random.h>
#include <troika/models/model.h>

namespace troika {
namespace {

class NoSink final : public UnitHooks {
 public:
  void gradients_ready(int unit) override { order.push_back(unit); }
  std::vector<int> order;
};

struct Bench {
  explicit Bench(const ModelRecipe& recipe)
      : model(build_model(recipe, 5)),
        stage(std::move(model.units), 0),
        arena(stage.specs(), {at::kDouble, at::kDouble}, Group()) {
    stage.bind(arena);
    arena.initialize(3);
    // Nothing may hide behind a zero or a one.
    for (const auto& parameter : arena.parameters()) {
      parameter->master().add_(noise(*parameter) * 0.1);
    }
  }

  at::Tensor noise(const Parameter& parameter) const {
    ParameterSpec spec = parameter.spec();
    spec.initializer = Initializer::normal(1);
    return initial_values(spec, 99);
  }

  double loss(const Microbatch& microbatch) {
    Saved saved;
    saved.microbatch = microbatch;
    return stage.forward({}, saved, sink).loss_sum;
  }

  Model model;
  UnitStage stage;
  Arena arena;
  NoSink sink;
};

Microbatch token_batch(const ModelRecipe& recipe) {
  constexpr std::int64_t kSamples = 3;
  const RandomStream stream(stream_key(11, "tokens"));
  Microbatch batch;
  batch.inputs = at::empty({kSamples, recipe.seq_len}, at::kLong);
  batch.targets = at::empty_like(batch.inputs);
  const auto count = static_cast<std::uint64_t>(batch.inputs.numel());
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto vocabulary = static_cast<std::uint64_t>(recipe.vocab_size);
    batch.inputs.mutable_data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(stream.below(i, vocabulary));
    batch.targets.mutable_data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(stream.below(i + count, vocabulary));
  }
  if (recipe.seq_len > 1) {
    batch.targets.narrow(1, recipe.seq_len - 2, 2)[1].fill_(kIgnoredTarget);
  }
  batch.sample_ids = at::arange(kSamples, at::kLong);
  batch.valid = batch.targets.ne(kIgnoredTarget).sum().item<std::int64_t>();
  batch.step = 1;
  return batch;
}

void expect_right_gradients(const ModelRecipe& recipe, const Microbatch& batch) {
  Bench bench(recipe);
  Saved saved;
  saved.microbatch = batch;
  const Activation output = bench.stage.forward({}, saved, bench.sink);
  EXPECT_EQ(output.count, batch.valid);
  bench.stage.backward(saved, {}, bench.sink);
  std::map<std::string, at::Tensor> gradients;  // the head adds to its slot in each forward pass
  for (const auto& parameter : bench.arena.parameters()) {
    ASSERT_TRUE(parameter->claimed()) << parameter->spec().name;
    gradients[parameter->spec().name] = parameter->gradient().clone();
  }
  for (const auto& parameter : bench.arena.parameters()) {
    SCOPED_TRACE(parameter->spec().name);
    const at::Tensor direction = bench.noise(*parameter);
    const double slope = (gradients[parameter->spec().name] * direction).sum().item<double>();
    constexpr double kStep = 1e-5;
    parameter->master().add_(direction, kStep);
    const double above = bench.loss(batch);
    parameter->master().add_(direction, -2 * kStep);
    const double below = bench.loss(batch);
    parameter->master().add_(direction, kStep);
    EXPECT_NEAR(slope, (above - below) / (2 * kStep), 1e-5 * (1 + std::abs(slope)));
  }
  for (std::size_t i = 1; i < bench.sink.order.size(); ++i) {
    EXPECT_EQ(bench.sink.order[i], bench.sink.order[i - 1] - 1);
  }
}

// A pipeline's B and W: the gradients of a block's matrices are all left to the second, which takes
// no second walk, and both together give the bits of backward().
void expect_the_same_in_two_parts(const ModelRecipe& recipe, const Microbatch& batch) {
  Bench whole(recipe), parts(recipe);
  Saved saved, kept;
  saved.microbatch = kept.microbatch = batch;
  (void)whole.stage.forward({}, saved, whole.sink);
  whole.stage.backward(saved, {}, whole.sink);
  (void)parts.stage.forward({}, kept, parts.sink);
  (void)parts.stage.backward_input(kept, {}, parts.sink);
  int left_over = 0;
  for (const auto& parameter : parts.arena.parameters()) {
    const std::string& name = parameter->spec().name;
    if (name.find("_proj.weight") == std::string::npos) continue;
    EXPECT_FALSE(parameter->claimed()) << name;
    ++left_over;
  }
  EXPECT_EQ(left_over % recipe.layers, 0);
  EXPECT_GT(left_over, 0);
  parts.stage.backward_weight(kept, parts.sink);
  for (std::size_t i = 0; i < whole.arena.parameters().size(); ++i) {
    const Parameter& one = *whole.arena.parameters()[i];
    const Parameter& other = *parts.arena.parameters()[i];
    ASSERT_TRUE(other.claimed()) << other.spec().name;
    EXPECT_TRUE(at::equal(one.gradient(), other.gradient())) << other.spec().name;
  }
}

ModelRecipe small_gpt() {
  ModelRecipe recipe;
  recipe.layers = 2;
  recipe.dim = 12;
  recipe.heads = recipe.kv_heads = 3;
  recipe.head_dim = 4;
  recipe.ffn_dim = 20;
  recipe.vocab_size = 13;
  recipe.seq_len = 7;
  return recipe;
}

TEST(GptGradients, Llama) {
  expect_right_gradients(small_gpt(), token_batch(small_gpt()));
}

TEST(GptGradients, UntiedWithBiasAndSharedKeyHeads) {
  ModelRecipe recipe = small_gpt();
  recipe.tied_embeddings = false;
  recipe.bias = true;
  recipe.kv_heads = 1;
  recipe.head_dim = 6;
  expect_right_gradients(recipe, token_batch(recipe));
}

TEST(GptGradients, InTwoParts) {
  for (const bool gpt2 : {false, true}) {
    ModelRecipe recipe = small_gpt();
    if (gpt2) {
      recipe.norm = Norm::kLayerNorm;
      recipe.position = Position::kLearned;
      recipe.activation = ActivationFunction::kGeluTanh;
      recipe.bias = true;
    }
    expect_the_same_in_two_parts(recipe, token_batch(recipe));
  }
}

TEST(GptGradients, Gpt2) {
  ModelRecipe recipe = small_gpt();
  recipe.norm = Norm::kLayerNorm;
  recipe.position = Position::kLearned;
  recipe.activation = ActivationFunction::kGeluTanh;
  recipe.bias = true;
  expect_right_gradients(recipe, token_batch(recipe));
}

TEST(GptGradients, ExactGeluLayerNormWithoutBias) {
  ModelRecipe recipe = small_gpt();
  recipe.norm = Norm::kLayerNorm;
  recipe.activation = ActivationFunction::kGelu;
  expect_right_gradients(recipe, token_batch(recipe));
}

TEST(GptGradients, Dropout) {
  ModelRecipe recipe = small_gpt();
  recipe.dropout = 0.3;
  expect_right_gradients(recipe, token_batch(recipe));
}

TEST(GptGradients, IsolatedDocuments) {
  for (const Position position : {Position::kRope, Position::kLearned}) {
    ModelRecipe recipe = small_gpt();
    recipe.position = position;
    Microbatch batch = token_batch(recipe);
    batch.document_ids = at::tensor({0, 0, 0, 1, 1, 1, 1}, at::kLong).repeat({3, 1});
    expect_right_gradients(recipe, batch);
  }
}

// Where a size is 1, a view's strides say little about where its elements are.
TEST(GptGradients, SizesOfOne) {
  ModelRecipe short_samples = small_gpt();
  short_samples.seq_len = 1;
  ModelRecipe all_ones = short_samples;
  all_ones.layers = all_ones.dim = all_ones.heads = all_ones.kv_heads = all_ones.ffn_dim = 1;
  all_ones.head_dim = 2;
  for (ModelRecipe recipe : {short_samples, all_ones}) {
    for (const Position position : {Position::kRope, Position::kLearned}) {
      recipe.position = position;
      Microbatch batch = token_batch(recipe);
      expect_right_gradients(recipe, batch);
      batch.document_ids = batch.inputs.mul(0);
      expect_right_gradients(recipe, batch);
    }
  }
}

TEST(GptForward, AnIsolatedDocumentDoesNotSeeTheOneBefore) {
  const ModelRecipe recipe = small_gpt();
  Bench bench(recipe);
  Microbatch batch = token_batch(recipe);
  batch.document_ids = at::tensor({0, 0, 0, 1, 1, 1, 1}, at::kLong).repeat({3, 1});
  batch.targets.narrow(1, 0, 3).fill_(kIgnoredTarget);  // only the second document counts
  const double before = bench.loss(batch);
  batch.inputs.narrow(1, 0, 3).fill_(1);
  EXPECT_EQ(bench.loss(batch), before);
}

ModelRecipe small_mlp() {
  ModelRecipe recipe;
  recipe.kind = ModelKind::kMlp;
  recipe.input_dim = 5;
  recipe.hidden_dims = {7, 6};
  recipe.output_dim = 4;
  recipe.activation = ActivationFunction::kTanh;
  return recipe;
}

Microbatch feature_batch(Loss loss) {
  const RandomStream stream(stream_key(12, "features"));
  Microbatch batch;
  batch.inputs = at::empty({6, 5}, at::kDouble);
  for (std::uint64_t i = 0; i < 30; ++i) {
    batch.inputs.mutable_data_ptr<double>()[i] = stream.normal(i);
  }
  batch.targets = loss == Loss::kCrossEntropy ? at::tensor({0, 1, 2, 3, 0, 1}, at::kLong)
                                              : at::ones({6, 4}, at::kDouble);
  batch.sample_ids = at::arange(6, at::kLong);
  batch.valid = 6;
  batch.step = 1;
  return batch;
}

TEST(MlpGradients, EveryLossAndActivation) {
  for (const Loss loss : {Loss::kCrossEntropy, Loss::kMeanSquare}) {
    for (const auto activation :
         {ActivationFunction::kTanh, ActivationFunction::kRelu, ActivationFunction::kGelu}) {
      ModelRecipe recipe = small_mlp();
      recipe.loss = loss;
      recipe.activation = activation;
      expect_right_gradients(recipe, feature_batch(loss));
    }
  }
}

TEST(MlpGradients, OneLayerAlone) {
  ModelRecipe recipe = small_mlp();
  recipe.hidden_dims.clear();
  expect_right_gradients(recipe, feature_batch(Loss::kCrossEntropy));
}

}  // namespace
}  // namespace troika
