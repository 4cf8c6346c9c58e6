// Small recipes, and trainers of them on the ranks of a test, on any layout.
#pragma once

#include <troika/models/gpt/options.h>
#include <troika/models/mlp/options.h>
#include <troika/models/resnet/options.h>
#include <troika/recipe/resolve.h>
#include <troika/train/job.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {

inline Recipe base_recipe() {
  Recipe recipe;
  recipe.name = "small";
  recipe.data = DataOptions::named("random");
  recipe.train.steps = 10;
  recipe.train.global_batch_size = 8;
  recipe.train.micro_batch_size = 1;
  recipe.train.precision = Precision::kFloat64;
  recipe.optimizer.warmup_steps = 0;
  return recipe;
}

inline Recipe gpt_recipe() {
  Recipe recipe = base_recipe();
  GptOptions gpt;
  gpt.layers = 2;
  gpt.dim = 16;
  gpt.heads = gpt.kv_heads = 2;
  gpt.head_dim = 8;
  gpt.ffn_dim = 20;
  gpt.vocab_size = 50;
  gpt.seq_len = 9;
  recipe.model = ModelOptions(gpt_kind(), gpt);
  return recipe;
}

inline Recipe resnet_recipe() {
  Recipe recipe = base_recipe();
  ResnetOptions resnet;
  resnet.classes = 3;
  resnet.blocks = {1};
  resnet.width = 4;
  resnet.image_size = 8;
  recipe.model = ModelOptions(resnet_kind(), resnet);
  return recipe;
}

// A trainer on some of the ranks of this test, or on this one alone.
struct Layout {
  std::int64_t tensor = 1, pipeline = 1, zero_stage = 0;
  bool alone = false;
};

inline Recipe laid_out(Recipe recipe, const Layout& layout, const Rank& rank) {
  recipe.parallel.tensor = layout.tensor;
  recipe.parallel.pipeline = layout.pipeline;
  recipe.parallel.zero_stage = layout.zero_stage;
  return resolve_recipe(recipe, layout.alone ? 1 : rank.size());
}

inline Group group_of(const Rank& rank, const std::string& name, const std::vector<int>& ranks) {
  if (ranks.size() == 1) return {};
  EngineOptions options = rank.options();
  options.reduction_order = EngineOptions::ReductionOrder::kInOrder;
  const auto index = std::ranges::find(ranks, rank.index()) - ranks.begin();
  return make_group(name, ranks, static_cast<int>(index), options);
}

inline TrainerContext context_of(const Recipe& recipe, const Layout& layout, const Rank& rank) {
  TrainerContext context;
  if (layout.alone) return context;
  const GroupRanks ranks = groups_of(recipe, rank.index());
  RankGroups& groups = context.groups;
  std::vector<int> all(static_cast<std::size_t>(rank.size()));
  std::iota(all.begin(), all.end(), 0);
  groups.world = group_of(rank, "world", all);
  groups.data = group_of(rank, "data", ranks.data);
  groups.tensor = group_of(rank, "tensor", ranks.tensor);
  groups.pipeline = group_of(rank, "pipeline", ranks.pipeline);
  groups.shard = groups.data;
  groups.embedding = group_of(rank, "tied stages", ranks.embedding);
  return context;
}

}  // namespace troika::test
