#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/models/gpt/block.h>
#include <troika/models/gpt/embedding.h>
#include <troika/models/gpt/gpt.h>
#include <troika/models/gpt/head.h>

#include <memory>
#include <numeric>

namespace troika {
namespace {

// Matrix products of one token in a block, forward: two operations a weight that it meets, and the
// scores and the weighted sum of causal attention over half the positions on average.
double block_flops(const GptOptions& options) {
  const auto dim = static_cast<double>(options.dim), ffn = static_cast<double>(options.ffn_dim);
  const double attended = static_cast<double>(options.heads * options.head_dim);
  const double keys = static_cast<double>(options.kv_heads * options.head_dim);
  const double matrices = options.activation == ActivationFunction::kSwiGlu ? 3 : 2;
  const double weights = dim * (2 * attended + 2 * keys) + matrices * dim * ffn;
  const double scores = 2 * attended * static_cast<double>(options.seq_len) / 2;
  return 2 * (weights + scores);
}

// The same of the output projection.
double head_flops(const GptOptions& options) {
  return 2 * static_cast<double>(options.dim) * static_cast<double>(options.vocab_size);
}

ModelFacts facts_of(const GptOptions& options) {
  ModelFacts facts;
  facts.targets_per_sample = options.seq_len;
  // The backward pass takes every product twice: once for the input, once for the weight.
  const double passes = 3 * static_cast<double>(options.seq_len);
  facts.unit_flops.push_back(0);  // rows are looked up
  for (std::int64_t i = 0; i < options.layers; ++i) {
    facts.unit_flops.push_back(passes * block_flops(options));
  }
  facts.unit_flops.push_back(passes * head_flops(options));
  facts.flops_per_sample = std::accumulate(facts.unit_flops.begin(), facts.unit_flops.end(), 0.0);
  return facts;
}

}  // namespace

Model build_gpt(const GptOptions& options, std::uint64_t seed, const ModelLayout& layout) {
  // check_split() of recipe/resolve.h has told the user.
  check(layout.tensor.size() <= options.heads, "more tensor ranks than heads");
  Model model;
  model.units.push_back(std::make_unique<GptEmbedding>(options, seed, layout));
  const auto positions = std::make_shared<RotaryPositions>();
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    model.units.push_back(std::make_unique<GptBlock>(options, layer, seed, layout, positions));
  }
  model.units.push_back(std::make_unique<GptHead>(options, layout));
  model.facts = facts_of(options);
  return model;
}

}  // namespace troika
