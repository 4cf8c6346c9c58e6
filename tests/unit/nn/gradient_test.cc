// The gradients that each layer works out by hand, against autograd's of the same formula in fp64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/nn/activation_function.h>
#include <troika/nn/attention.h>
#include <troika/nn/linear.h>
#include <troika/nn/normalization.h>
#include <troika/ops/dropout.h>

#include <cmath>
#include <limits>

namespace troika {
namespace {

at::Tensor numbers(at::IntArrayRef shape, double phase) {
  const std::int64_t count = c10::multiply_integers(shape);
  return at::sin(at::arange(count, at::kDouble) * 1.7 + phase).view(shape);
}

at::Tensor leaf(const at::Tensor& value) {
  return value.detach().clone().requires_grad_(true);
}

std::vector<at::Tensor> gradients_of(const at::Tensor& output, const at::Tensor& gradient,
                                     const std::vector<at::Tensor>& inputs) {
  return torch::autograd::grad({output}, inputs, {gradient});
}

void expect_close(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_LE((found - expected).abs().max().item<double>(),
            1e-13 * expected.abs().max().item<double>());
}

// A layer over an arena of its own, with parameters that differ from zero and one.
template <class Layer>
struct Bound {
  explicit Bound(Layer made) : layer(std::move(made)), arena(specs(), kTypes, Group()) {
    layer.bind(arena);
    double phase = 0;
    for (const auto& parameter : arena.parameters()) {
      parameter->master().copy_(numbers(parameter->spec().shape, ++phase));
    }
  }
  std::vector<ParameterSpec> specs() const {
    std::vector<ParameterSpec> all;
    layer.declare(all);
    return all;
  }
  at::Tensor value(const std::string& name) const { return arena.parameter(name).master(); }
  at::Tensor gradient(const std::string& name) const { return arena.parameter(name).gradient(); }

  static constexpr NumericTypes kTypes{at::kDouble, at::kDouble};
  Layer layer;
  Arena arena;
};

TEST(LayerGradients, Linear) {
  const auto start = Initializer::constant(0);
  Bound<Linear> bound(Linear("fc", 5, 3, Bias::kPresent, start, start));
  const at::Tensor input = leaf(numbers({4, 5}, 3)), gradient = numbers({4, 3}, 4);
  const at::Tensor weight = leaf(bound.value("fc.weight")), bias = leaf(bound.value("fc.bias"));
  const at::Tensor output = at::linear(input, weight, bias);
  const auto expected = gradients_of(output, gradient, {input, weight, bias});
  const at::NoGradGuard no_autograd;
  expect_close(bound.layer.forward(input), output);
  expect_close(bound.layer.backward_input(gradient), expected[0]);
  bound.layer.backward_weight(gradient, input);
  expect_close(bound.gradient("fc.weight"), expected[1]);
  expect_close(bound.gradient("fc.bias"), expected[2]);
}

// The mask is what a pass over ones leaves of them; the layer's own parameters are frozen.
TEST(LayerGradients, LinearWithAPair) {
  const auto start = Initializer::constant(0);
  LoraTargets targets({.rank = 2, .alpha = 3, .dropout = 0.5, .match = {"f?"}}, 7);
  Linear made("fc", 5, 3, Bias::kPresent, start, start);
  made.adapt(targets);
  targets.check();
  EXPECT_EQ(targets.adapted(), std::vector<std::string>{"fc"});
  const Bound<Linear> bound(std::move(made));
  LoraPass pass{{2, at::tensor({3, 9}, at::kLong), 5}};
  const at::Tensor mask =
      ops::dropout_rows(at::ones({4, 5}, at::kDouble), {0, 2}, pass.draws.sample_ids, 0.5,
                        {stream_key(7, "dropout fc.lora"), 5});
  EXPECT_GT(mask.max().item<double>(), mask.min().item<double>());
  const at::Tensor input = leaf(numbers({4, 5}, 3)), gradient = numbers({4, 3}, 4);
  const at::Tensor a = leaf(bound.value("fc.lora_A.weight")),
                   b = leaf(bound.value("fc.lora_B.weight"));
  const at::Tensor output = at::linear(input, bound.value("fc.weight"), bound.value("fc.bias")) +
                            1.5 * at::linear(at::linear(input * mask, a), b);
  const auto expected = gradients_of(output, gradient, {input, a, b});
  const at::NoGradGuard no_autograd;
  expect_close(bound.layer.forward(input, &pass), output);
  expect_close(bound.layer.backward_input(gradient, &pass), expected[0]);
  bound.layer.backward_weight(gradient, input, &pass);
  expect_close(bound.gradient("fc.lora_A.weight"), expected[1]);
  expect_close(bound.gradient("fc.lora_B.weight"), expected[2]);
  const at::Tensor evaluated = bound.layer.forward(input);
  expect_close(evaluated, at::linear(input, bound.value("fc.weight"), bound.value("fc.bias")) +
                              1.5 * at::linear(at::linear(input, a), b));
}

TEST(LayerGradients, PatternsThatFitNoLayer) {
  LoraTargets targets({.match = {"q_proj", "*.qkv"}}, 0);
  EXPECT_TRUE(targets.take("layers.0.q_proj"));
  EXPECT_TRUE(targets.take("q_proj"));
  EXPECT_FALSE(targets.take("layers.0.kq_proj"));
  EXPECT_FALSE(targets.take("layers.0.k_proj"));
  try {
    targets.check();
    FAIL() << "a pattern without a layer";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "[adapter] match: '*.qkv' fits no linear layer of the model");
    EXPECT_EQ(error.hint(), "linear layers are layers.0.q_proj, ..., layers.0.k_proj");
  }
  EXPECT_THROW(LoraTargets({}, 0).check(), UsageError);
}

TEST(LayerGradients, Norms) {
  for (const Norm kind : {Norm::kRmsNorm, Norm::kLayerNorm}) {
    const bool centred = kind == Norm::kLayerNorm;
    Bound<Normalization> bound(Normalization("norm", 6, kind, centred, 1e-3));
    const at::Tensor input = leaf(numbers({4, 6}, 1)), gradient = numbers({4, 6}, 2);
    const at::Tensor weight = leaf(bound.value("norm.weight"));
    std::vector<at::Tensor> inputs = {input, weight};
    at::Tensor output;
    if (centred) {
      inputs.push_back(leaf(bound.value("norm.bias")));
      output = at::layer_norm(input, {6}, weight, inputs.back(), 1e-3);
    } else {
      output = input * (input.square().mean(1, true) + 1e-3).rsqrt() * weight;
    }
    const auto expected = gradients_of(output, gradient, inputs);
    const at::NoGradGuard no_autograd;
    Normalization::State state;
    expect_close(bound.layer.forward(input.detach(), state), output);
    expect_close(bound.layer.backward(state, gradient), expected[0]);
    expect_close(bound.gradient("norm.weight"), expected[1]);
    if (centred) expect_close(bound.gradient("norm.bias"), expected[2]);
  }
}

TEST(LayerGradients, Activations) {
  const at::Tensor gradient = numbers({3, 7}, 5);
  for (const auto kind : {ActivationFunction::kGelu, ActivationFunction::kGeluTanh,
                          ActivationFunction::kRelu, ActivationFunction::kTanh}) {
    const at::Tensor input = leaf(numbers({3, 7}, 7));
    const at::Tensor output = apply(kind, input);
    expect_close(apply_backward(kind, gradient, input.detach(), output.detach()),
                 gradients_of(output, gradient, {input})[0]);
  }
}

// Two query heads share a key and value head.
TEST(LayerGradients, Attention) {
  const AttentionShape shape{2, 5, 4, 2, 3, {}};
  const at::Tensor query = leaf(numbers({10, 12}, 1)), key = leaf(numbers({10, 6}, 2)),
                   value = leaf(numbers({10, 6}, 3)), gradient = numbers({10, 12}, 4);
  const auto heads = [](const at::Tensor& flat, std::int64_t count) {
    return flat.view({2, 5, count, 3}).transpose(1, 2);
  };
  const at::Tensor keys = heads(key, 2).repeat_interleave(2, 1);
  const at::Tensor values = heads(value, 2).repeat_interleave(2, 1);
  at::Tensor scores = heads(query, 4).matmul(keys.transpose(2, 3)) / std::sqrt(3.0);
  const at::Tensor later = at::ones({5, 5}, at::kBool).triu(1);
  scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  const at::Tensor output = at::softmax(scores, 3).matmul(values).transpose(1, 2).reshape({10, 12});
  const auto expected = gradients_of(output, gradient, {query, key, value});
  const at::NoGradGuard no_autograd;
  AttentionState state;
  expect_close(attention(query.detach(), key.detach(), value.detach(), shape, {}, state), output);
  const AttentionGradients found = attention_backward(state, shape, gradient);
  expect_close(found.query, expected[0]);
  expect_close(found.key, expected[1]);
  expect_close(found.value, expected[2]);
}

}  // namespace
}  // namespace troika
