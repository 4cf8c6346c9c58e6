// Replicas whose parameters come apart are found and named, on any layout; those that only rounding
// has moved are not.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/observe/log.h>
#include <troika/sync/local_sync.h>
#include <troika/train/replica_comparison.h>

#include <string>
#include <string_view>
#include <vector>

#include "ranks/layouts.h"

namespace troika::test {
namespace {

struct ComparedRun {
  ComparedRun(const Recipe& recipe, const Layout& layout, const Rank& rank,
              const std::string& processor = "a processor")
      : resolved(laid_out(recipe, layout, rank)),
        context(context_of(resolved, layout, rank)),
        own{"rank " + std::to_string(rank.index()), processor} {
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
  ReplicaRank own;
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
      for (const std::int64_t bit : {50, 0}) {  // the largest and the smallest of the mantissa
        if (rank.index() == odd) flip_last_bit(run.last(), bit);
        EXPECT_EQ(run.difference(), rank.size() == 2
                                        ? run.last_name() + " differs between rank 0 and rank 1"
                                        : run.last_name() + " on rank " + std::to_string(odd) +
                                              " is not that of the other 3 replicas");
        if (rank.index() == odd) flip_last_bit(run.last(), bit);
        EXPECT_EQ(run.difference(), "");
      }
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

// Messages of the log while it lives.
class LoggedLines {
 public:
  LoggedLines() {
    LogOptions options;
    options.writer = [this](LogLevel, std::string_view message) { lines_.emplace_back(message); };
    configure_log(options);
  }
  ~LoggedLines() { configure_log({}); }
  LoggedLines(const LoggedLines&) = delete;
  LoggedLines& operator=(const LoggedLines&) = delete;
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

RANK_TEST(Replicas, OfOtherProcessorsTakeOverWhatRoundingExplains, 3) {
  const std::string processor = rank.index() == 2 ? "another processor" : "a processor";
  ComparedRun run(gpt_recipe(), {}, rank, processor);
  (void)run.trainer->step();
  const at::Tensor before = run.last().clone();
  if (rank.index() == 2) flip_last_bit(run.last(), 0);
  const LoggedLines log;
  EXPECT_EQ(run.difference(), "");
  EXPECT_TRUE(run.last().equal(before));
  std::vector<std::string> told;
  if (rank.index() == 0) {
    told.push_back("replicas on processors of 2 kinds have come apart by rounding: all take over " +
                   run.last_name() + " of rank 0");
  }
  EXPECT_EQ(log.lines(), told);
  // More than that is a fault there, too.
  if (rank.index() == 2) flip_last_bit(run.last(), 50);
  EXPECT_EQ(run.difference(), run.last_name() + " on rank 2 is not that of the other 2 replicas");
}

// Two of each kind, and the one that is odd is not of the first kind.
RANK_TEST(Replicas, OfOneKindOfProcessorHaveTheSameBits, 4) {
  ComparedRun run(gpt_recipe(), {}, rank, rank.index() < 2 ? "a processor" : "another processor");
  (void)run.trainer->step();
  if (rank.index() >= 2) flip_last_bit(run.last(), 1);
  EXPECT_EQ(run.difference(), "");  // both have it
  if (rank.index() == 3) flip_last_bit(run.last(), 0);
  EXPECT_EQ(run.difference(), run.last_name() + " differs between rank 2 and rank 3");
}

// One rank computes each value, and the others take its bits.
RANK_TEST(Replicas, ThatGatherTheirValuesAreNeverRounded, 2) {
  ComparedRun run(gpt_recipe(), {.zero_stage = 1}, rank,
                  rank.index() == 0 ? "a processor" : "another processor");
  (void)run.trainer->step();
  EXPECT_EQ(run.difference(), "");
  if (rank.index() == 1) flip_last_bit(run.last(), 0);
  EXPECT_EQ(run.difference(), run.last_name() + " differs between rank 0 and rank 1");
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
