#include <ATen/ATen.h>
#include <troika/models/gpt/block.h>
#include <troika/models/gpt/embedding.h>
#include <troika/models/gpt/gpt.h>
#include <troika/models/gpt/head.h>

namespace troika {
namespace {

// Matrix products of one token, forward: two operations a weight that it meets, and the scores and
// the weighted sum of causal attention over half the positions on average.
double forward_flops_per_token(const ModelRecipe& recipe) {
  const auto dim = static_cast<double>(recipe.dim), ffn = static_cast<double>(recipe.ffn_dim);
  const double attended = static_cast<double>(recipe.heads * recipe.head_dim);
  const double keys = static_cast<double>(recipe.kv_heads * recipe.head_dim);
  const double matrices = recipe.activation == ActivationFunction::kSwiGlu ? 3 : 2;
  const double weights = dim * (2 * attended + 2 * keys) + matrices * dim * ffn;
  const double scores = 2 * attended * static_cast<double>(recipe.seq_len) / 2;
  return 2 * (static_cast<double>(recipe.layers) * (weights + scores) +
              dim * static_cast<double>(recipe.vocab_size));
}

}  // namespace

Model build_gpt(const ModelRecipe& recipe, std::uint64_t seed) {
  Model model;
  model.units.push_back(std::make_unique<GptEmbedding>(recipe, seed));
  for (std::int64_t layer = 0; layer < recipe.layers; ++layer) {
    model.units.push_back(std::make_unique<GptBlock>(recipe, layer, seed));
  }
  model.units.push_back(std::make_unique<GptHead>(recipe));
  model.facts.targets_per_sample = recipe.seq_len;
  // The backward pass takes every product twice: once for the input, once for the weight.
  model.facts.flops_per_sample =
      3 * forward_flops_per_token(recipe) * static_cast<double>(recipe.seq_len);
  return model;
}

}  // namespace troika
