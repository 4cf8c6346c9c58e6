// Replicas whose parameters come apart are found and named, on any layout; those that only rounding
// has moved are not.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/sync/local_sync.h>
#include <troika/train/replica_comparison.h>

#include <string>

#include "ranks/layouts.h"

namespace troika::test {
namespace {

struct ComparedRun {
  ComparedRun(const Recipe& recipe, const Layout& layout, const Rank& rank)
      : resolved(laid_out(recipe, layout, rank)),
        context(context_of(resolved, layout, rank)),
        own("rank " + std::to_string(rank.index())) {
    const GroupRanks ranks = groups_of(resolved, rank.index());
    context.groups.islands = group_of(rank, "islands", ranks.islands);
    context.groups.island =
        ranks.islands.size() == 1 ? context.groups.world : group_of(rank, "island", ranks.island);
    trainer.emplace(resolved, open_dataset(resolved.data, traits_of(resolved.model).sample, 1),
                    context);
  }

  std::string difference() {
    const std::optional<Failure> found = trainer->compare_replicas(own);
    EXPECT_TRUE(!found || found->code == ExitCode::kRankDied);
    return found ? found->message : "";
  }

  // The last parameter of this rank, as it computes with it.
  at::Tensor last() const {
    return trainer->model().arena().parameters().back()->working_weight().view(-1);
  }
  std::string last_name() const {
    return "parameter '" + trainer->model().arena().parameters().back()->spec().name + "'";
  }

  Recipe resolved;
  TrainerContext context;
  std::string own;
  std::optional<Trainer> trainer;
};

void flip_last_bit(const at::Tensor& values, std::int64_t bit) {
  at::Tensor bits = values.view(at::kLong);
  bits[-1].bitwise_xor_(std::int64_t{1} << bit);
}

RANK_TEST(Replicas, ThatComeApartAreNamed, 2, 4) {
  for (const std::int64_t stage : {0, 1, 2}) {
    SCOPED_TRACE(stage);
    ComparedRun run(gpt_recipe(), {.zero_stage = stage}, rank);
    (void)run.trainer->step();
    EXPECT_EQ(run.difference(), "");
    for (const int odd : {rank.size() - 1, 0}) {
      constexpr std::int64_t kLargest = 50;  // of the mantissa
      if (rank.index() == odd) flip_last_bit(run.last(), kLargest);
      EXPECT_EQ(run.difference(), rank.size() == 2
                                      ? run.last_name() + " differs between rank 0 and rank 1"
                                      : run.last_name() + " on rank " + std::to_string(odd) +
                                            " is not that of the other 3 replicas");
      if (rank.index() == odd) flip_last_bit(run.last(), kLargest);
      EXPECT_EQ(run.difference(), "");
    }
  }
}

// Each value is there once, or on ranks that hold other parts of the model: nothing to compare, and
// no false alarm.
RANK_TEST(Replicas, AreEqualOnEveryLayout, 2, 4) {
  for (const Layout& layout : {Layout{.zero_stage = 3}, Layout{.pipeline = 2}, Layout{.tensor = 2},
                               Layout{.pipeline = 2, .zero_stage = 1}}) {
    for (const Recipe& recipe : {gpt_recipe(), resnet_recipe()}) {
      if (layout.tensor > 1 && recipe.model.holds<ResnetOptions>()) continue;
      ComparedRun run(recipe, layout, rank);
      for (int step = 0; step < 3; ++step) {
        (void)run.trainer->step();
        EXPECT_EQ(run.difference(), "");
      }
    }
  }
}

RANK_TEST(Replicas, TakeOverWhatRoundingExplains, 3) {
  ComparedRun run(gpt_recipe(), {}, rank);
  (void)run.trainer->step();
  const at::Tensor before = run.last().clone();
  if (rank.index() == 2) flip_last_bit(run.last(), 0);
  EXPECT_EQ(run.difference(), "");
  EXPECT_TRUE(run.last().equal(before));
}

// Islands differ between their averages, and not right after one.
RANK_TEST(Replicas, ThatTrainOnTheirOwnAreComparedAfterAnAverage, 2) {
  Recipe recipe = gpt_recipe();
  LocalOptions local;
  local.every_steps = 2;
  local.island = 1;
  recipe.sync = Chosen<SyncKind>(local_kind(), local);
  ComparedRun run(recipe, {}, rank);
  for (int round = 0; round < 2; ++round) {
    (void)run.trainer->step();
    EXPECT_EQ(run.difference(), "");
    (void)run.trainer->step();
    EXPECT_EQ(run.difference(), "");
  }
  if (rank.index() == 1) flip_last_bit(run.last(), 50);
  EXPECT_EQ(run.difference(), run.last_name() + " differs between rank 0 and rank 1");
}

}  // namespace
}  // namespace troika::test
