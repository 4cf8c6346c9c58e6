// Whole simulated jobs whose workers come and go.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/recipe/recipe_file.h>
#include <troika/simulate/passes.h>
#include <troika/simulate/stays.h>
#include <troika/simulate/sync_simulation.h>
#include <troika/train/run.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace troika {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kRecipe = R"(
name = "far"
[model]
kind = "gpt"
layers = 2
dim = 32
heads = 2
ffn_dim = 64
vocab_size = 256
seq_len = 16
[data]
kind = "text"
tokenizer = "bytes"
held_out_fraction = 0.2
[train]
steps = 24
global_batch_size = 40
micro_batch_size = 4
evaluate_every_steps = 24
precision = "fp32"
[optimizer]
kind = "adamw"
lr = 3e-3
warmup_steps = 0
schedule = "constant"
[sync]
kind = "server"
staleness = "any"
local_steps = 10
)";

class SyncSimulationTest : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // passes are small
    for (int file = 0; file < 10; ++file) {
      std::string text;
      for (int i = 0; i < 80; ++i) {
        text += "worker " + std::to_string((i + 7 * file) * i % 97) + " pulls, trains, pushes; ";
      }
      write_file_atomically(folder_ / (std::to_string(file) + ".txt"), text);
    }
  }

  SyncSimulation simulated(int starting, const std::vector<double>& joins,
                           const std::vector<std::string>& leaves,
                           std::vector<std::string> settings = {}) {
    settings.push_back("data.paths=[\"" + (folder_ / "*.txt").string() + "\"]");
    SimulatedJob job;
    job.stays = worker_stays(starting, joins, leaves);
    job.speeds.assign(static_cast<std::size_t>(starting) + joins.size(), 1);
    // In step, all would pull before any pushes.
    for (std::size_t i = 0; i < job.speeds.size(); ++i) {
      job.speeds[i] += 0.01 * static_cast<double>(i);
    }
    LoadedRecipe loaded =
        parse_recipe(kRecipe, (folder_ / "recipe.toml").string(), settings, KnownRanks(starting));
    check_simulated(loaded.recipe, job);
    loaded.recipe.parallel.data.reset();
    loaded.recipe.train.device = "cpu";
    const Recipe recipe = resolve_for_run(loaded.recipe, 1, loaded.origins);
    Passes passes(recipe);
    return simulate_sync(recipe, job, passes);
  }

  TemporaryFolder folder_;
};

std::vector<std::int64_t> passes_of(const SyncSimulation& simulation) {
  std::vector<std::int64_t> passes;
  for (const SimulatedWorker& each : simulation.workers) passes.push_back(each.passes);
  return passes;
}

// As many outer steps of as many pushes, whether the job starts with its workers or they join. An
// outer momentum that waits for the one worker of the start alone ends above its first loss.
TEST_F(SyncSimulationTest, WorkersThatJoinDoNotMakeItDiverge) {
  const auto held_out = [](const SyncSimulation& simulation) {
    return simulation.steps.back().held_out_loss.value();
  };
  const double started = held_out(simulated(
      3, {}, {}, {"train.global_batch_size=120", "train.steps=8", "train.evaluate_every_steps=8"}));
  EXPECT_LT(started, 1.2);
  const double joined = held_out(simulated(1, {1.5, 1.6}, {}));
  EXPECT_LT(joined, 1.2 * started);
  const double left = held_out(simulated(1, {1.5, 1.6}, {"1@8", "0@12"}));
  EXPECT_LT(left, 1.2 * started);
}

TEST_F(SyncSimulationTest, WorkersTrainWhileTheyAreThere) {
  const std::vector<std::string> sgd = {"optimizer.kind=sgd", "optimizer.lr=1e-6",
                                        "train.steps=20",     "train.evaluate_every_steps=0",
                                        "sync.local_steps=1", "train.global_batch_size=4"};
  const SyncSimulation simulation = simulated(1, {4.5, 30}, {"0@10.2"}, sgd);
  EXPECT_THAT(simulation.failure, IsEmpty());
  ASSERT_EQ(simulation.workers.size(), 2U) << "the third would have come behind the end";
  EXPECT_EQ(simulation.workers[0].passes, 11) << "it leaves behind the pass that it is at";
  EXPECT_EQ(simulation.workers[0].left, 11);
  EXPECT_EQ(simulation.workers[1].joined, 4.5);
  EXPECT_EQ(simulation.workers[1].passes, 9);
  EXPECT_NEAR(simulation.waiting(), 0, 1e-9);
  EXPECT_EQ(simulation.steps.size(), 20U);
  // A synchronous step is shared out among those that are there when it begins.
  std::vector<std::string> synchronous = sgd;
  synchronous.emplace_back("sync.staleness=0");
  const SyncSimulation together = simulated(1, {4.5}, {"0@10.2"}, synchronous);
  EXPECT_THAT(together.failure, IsEmpty());
  // 5 steps of 4 samples alone, 11 shared, 4 of the other.
  EXPECT_EQ(together.workers[0].samples, 5 * 4 + 11 * 2);
  EXPECT_EQ(together.workers[1].samples, 11 * 2 + 4 * 4);
}

TEST_F(SyncSimulationTest, EndsWhereNoWorkerIsLeft) {
  const SyncSimulation simulation = simulated(1, {}, {"0@3.5"}, {"sync.local_steps=1"});
  EXPECT_THAT(simulation.failure, HasSubstr("all workers have left"));
  EXPECT_THAT(passes_of(simulation), testing::ElementsAre(4));
}

TEST(CheckSimulated, OnlyServersLetWorkersComeAndGo) {
  SimulatedJob job;
  job.speeds = {1, 1};
  job.stays = worker_stays(1, {3}, {});
  Recipe recipe;
  recipe.sync = Chosen<SyncKind>::named("gossip");
  try {
    check_simulated(recipe, job);
    FAIL() << "was taken";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("only with [sync] kind = \"server\""));
    EXPECT_THAT(error.what(), HasSubstr("gossip"));
  }
  recipe.sync = Chosen<SyncKind>::named("server");
  EXPECT_NO_THROW(check_simulated(recipe, job));
}

}  // namespace
}  // namespace troika
