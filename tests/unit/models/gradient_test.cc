// The gradients that the layers work out by hand against finite differences of the loss, in fp64,
// for every choice of the recipe: (L(p + h d) - L(p - h d)) / 2h must be the gradient's product
// with d.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/random.h>
#include <troika/models/gpt/gpt.h>
#include <troika/models/mlp/mlp.h>

namespace troika {
namespace {

class NoSink final : public UnitHooks {
 public:
  void gradients_ready(int unit) override { order.push_back(unit); }
  std::vector<int> order;
};

struct Bench {
  explicit Bench(Model built)
      : model(std::move(built)),
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
    return stage.forward({}, saved, sink).loss.read_sum();
  }

  Model model;
  UnitStage stage;
  Arena arena;
  NoSink sink;
};

Microbatch token_batch(const GptOptions& options) {
  constexpr std::int64_t kSamples = 3;
  const RandomStream stream(stream_key(11, "tokens"));
  Microbatch batch;
  batch.tensors.set("input_ids", at::empty({kSamples, options.seq_len}, at::kLong));
  batch.tensors.set("targets", at::empty_like(batch.tensors[0]));
  const auto count = static_cast<std::uint64_t>(batch.tensors[0].numel());
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto vocabulary = static_cast<std::uint64_t>(options.vocab_size);
    batch.tensors[0].mutable_data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(stream.below(i, vocabulary));
    batch.tensors[1].mutable_data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(stream.below(i + count, vocabulary));
  }
  if (options.seq_len > 1) {
    batch.tensors[1].narrow(1, options.seq_len - 2, 2)[1].fill_(kIgnoredTarget);
  }
  batch.sample_ids = at::arange(kSamples, at::kLong);
  batch.valid = batch.tensors[1].ne(kIgnoredTarget).sum().item<std::int64_t>();
  batch.step = 1;
  return batch;
}

void expect_right_gradients(Model model, const Microbatch& batch) {
  Bench bench(std::move(model));
  Saved saved;
  saved.microbatch = batch;
  const Activation output = bench.stage.forward({}, saved, bench.sink);
  EXPECT_EQ(output.loss.read_weight(), static_cast<double>(batch.valid));
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
void expect_the_same_in_two_parts(const GptOptions& options, const Microbatch& batch) {
  Bench whole(build_gpt(options, 5)), parts(build_gpt(options, 5));
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
  EXPECT_EQ(left_over % options.layers, 0);
  EXPECT_GT(left_over, 0);
  parts.stage.backward_weight(kept, parts.sink);
  for (std::size_t i = 0; i < whole.arena.parameters().size(); ++i) {
    const Parameter& one = *whole.arena.parameters()[i];
    const Parameter& other = *parts.arena.parameters()[i];
    ASSERT_TRUE(other.claimed()) << other.spec().name;
    EXPECT_TRUE(at::equal(one.gradient(), other.gradient())) << other.spec().name;
  }
}

GptOptions small_gpt() {
  GptOptions options;
  options.layers = 2;
  options.dim = 12;
  options.heads = options.kv_heads = 3;
  options.head_dim = 4;
  options.ffn_dim = 20;
  options.vocab_size = 13;
  options.seq_len = 7;
  return options;
}

TEST(GptGradients, Llama) {
  expect_right_gradients(build_gpt(small_gpt(), 5), token_batch(small_gpt()));
}

TEST(GptGradients, UntiedWithBiasAndSharedKeyHeads) {
  GptOptions options = small_gpt();
  options.tied_embeddings = false;
  options.bias = true;
  options.kv_heads = 1;
  options.head_dim = 6;
  expect_right_gradients(build_gpt(options, 5), token_batch(options));
}

// Qwen2's biases, Qwen3's norms of heads and the angles of Llama 3.1.
GptOptions small_qwen() {
  GptOptions options = small_gpt();
  options.kv_heads = 1;
  options.head_dim = 6;
  options.qkv_bias = true;
  options.qk_norm = true;
  options.rope_scaling = ops::RotaryScaling::kLlama3;
  options.rope_factor = 3;
  options.rope_original_len = 9;
  return options;
}

TEST(GptGradients, Qwen) {
  expect_right_gradients(build_gpt(small_qwen(), 5), token_batch(small_qwen()));
}

TEST(GptGradients, LayerNormsOfHeads) {
  GptOptions options = small_gpt();
  options.norm = Norm::kLayerNorm;
  options.bias = options.qk_norm = true;
  expect_right_gradients(build_gpt(options, 5), token_batch(options));
}

TEST(GptGradients, InTwoParts) {
  expect_the_same_in_two_parts(small_qwen(), token_batch(small_qwen()));
  for (const bool gpt2 : {false, true}) {
    GptOptions options = small_gpt();
    if (gpt2) {
      options.norm = Norm::kLayerNorm;
      options.position = Position::kLearned;
      options.activation = ActivationFunction::kGeluTanh;
      options.bias = true;
    }
    expect_the_same_in_two_parts(options, token_batch(options));
  }
}

TEST(GptGradients, Gpt2) {
  GptOptions options = small_gpt();
  options.norm = Norm::kLayerNorm;
  options.position = Position::kLearned;
  options.activation = ActivationFunction::kGeluTanh;
  options.bias = true;
  expect_right_gradients(build_gpt(options, 5), token_batch(options));
}

TEST(GptGradients, ExactGeluLayerNormWithoutBias) {
  GptOptions options = small_gpt();
  options.norm = Norm::kLayerNorm;
  options.activation = ActivationFunction::kGelu;
  expect_right_gradients(build_gpt(options, 5), token_batch(options));
}

TEST(GptGradients, Dropout) {
  GptOptions options = small_gpt();
  options.dropout = 0.3;
  expect_right_gradients(build_gpt(options, 5), token_batch(options));
}

TEST(GptGradients, IsolatedDocuments) {
  for (const Position position : {Position::kRope, Position::kLearned}) {
    GptOptions options = small_gpt();
    options.position = position;
    Microbatch batch = token_batch(options);
    batch.tensors.set("document_ids", at::tensor({0, 0, 0, 1, 1, 1, 1}, at::kLong).repeat({3, 1}));
    expect_right_gradients(build_gpt(options, 5), batch);
  }
}

// Where a size is 1, a view's strides say little about where its elements are.
TEST(GptGradients, SizesOfOne) {
  GptOptions short_samples = small_gpt();
  short_samples.seq_len = 1;
  GptOptions all_ones = short_samples;
  all_ones.layers = all_ones.dim = all_ones.heads = all_ones.kv_heads = all_ones.ffn_dim = 1;
  all_ones.head_dim = 2;
  for (GptOptions options : {short_samples, all_ones}) {
    for (const Position position : {Position::kRope, Position::kLearned}) {
      options.position = position;
      Microbatch batch = token_batch(options);
      expect_right_gradients(build_gpt(options, 5), batch);
      batch.tensors.set("document_ids", batch.tensors[0].mul(0));
      expect_right_gradients(build_gpt(options, 5), batch);
    }
  }
}

TEST(GptForward, AnIsolatedDocumentDoesNotSeeTheOneBefore) {
  const GptOptions options = small_gpt();
  Bench bench(build_gpt(options, 5));
  Microbatch batch = token_batch(options);
  batch.tensors.set("document_ids", at::tensor({0, 0, 0, 1, 1, 1, 1}, at::kLong).repeat({3, 1}));
  batch.tensors[1].narrow(1, 0, 3).fill_(kIgnoredTarget);  // only the second document counts
  const double before = bench.loss(batch);
  batch.tensors[0].narrow(1, 0, 3).fill_(1);
  EXPECT_EQ(bench.loss(batch), before);
}

MlpOptions small_mlp() {
  MlpOptions options;
  options.input_dim = 5;
  options.hidden_dims = {7, 6};
  options.output_dim = 4;
  options.activation = ActivationFunction::kTanh;
  return options;
}

Microbatch feature_batch(const LossOptions& loss) {
  const RandomStream stream(stream_key(12, "features"));
  Microbatch batch;
  batch.tensors.set("features", at::empty({6, 5}, at::kDouble));
  for (std::uint64_t i = 0; i < 30; ++i) {
    batch.tensors[0].mutable_data_ptr<double>()[i] = stream.normal(i);
  }
  if (&loss.kind() == &cross_entropy_kind()) {
    batch.tensors.set("targets", at::tensor({0, 1, 2, 3, 0, 1}, at::kLong));
  } else {
    batch.tensors.set("targets", at::ones({6, 4}, at::kDouble));
    batch.tensors[1].select(0, 1).zero_();
  }
  batch.sample_ids = at::arange(6, at::kLong);
  batch.valid = 6;
  batch.step = 1;
  return batch;
}

TEST(MlpGradients, EveryLossAndActivation) {
  for (const LossKind* kind : LossKind::all()) {
    if (!kind->takes_outputs()) continue;
    for (const auto activation :
         {ActivationFunction::kTanh, ActivationFunction::kRelu, ActivationFunction::kGelu}) {
      MlpOptions options = small_mlp();
      options.activation = activation;
      const LossOptions loss(*kind);
      expect_right_gradients(build_mlp(options, loss), feature_batch(loss));
    }
  }
}

TEST(MlpGradients, OneLayerAlone) {
  MlpOptions options = small_mlp();
  options.hidden_dims.clear();
  expect_right_gradients(build_mlp(options), feature_batch(LossOptions()));
}

}  // namespace
}  // namespace troika
