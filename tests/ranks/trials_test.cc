// Trials one after the other in the same processes: what those ranks do that a trial does not use.
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/data/sources/random/random.h>
#include <troika/models/mlp/options.h>
#include <troika/rendezvous/world.h>
#include <troika/verify/layout_text.h>
#include <troika/verify/trials.h>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

constexpr Seconds kRendezvous{30};

// As a launcher on this host would start the ranks.
World world_of(const Rank& rank, const Endpoint& store) {
  World world;
  world.rank = world.local_rank = rank.index();
  world.size = world.local_size = rank.size();
  world.node_rank = 0;
  world.nodes = 1;
  world.host = "here";
  world.store = store;
  world.store_host = StoreHost::kLauncher;
  world.source = "test";
  world.job = "trials";
  return world;
}

Recipe small_recipe(const TrialOptions& options) {
  Recipe recipe;
  recipe.name = "small";
  recipe.model = ModelOptions(mlp_kind(), MlpOptions{6, {8, 5}, 3, ActivationFunction::kTanh});
  recipe.data = DataOptions(random_kind(), RandomOptions{0});
  recipe.train.global_batch_size = 7;
  recipe.train.micro_batch_size = 2;
  recipe.comm.rendezvous_timeout_seconds = kRendezvous.count();
  return trial_recipe(recipe, 7, options);
}

// The key behind which a rank announces itself in the rendezvous of a trial.
std::string arrival_key(const World& world, const Trial& trial, int rank) {
  return key_prefix(world.job + "/" + trial.recipe.name) + "/member/" + std::to_string(rank);
}

RANK_TEST(Trials, RanksThatAreNotUsedStayOutOfTheRendezvous, 3) {
  const TrialOptions options{.steps = 1, .folder = rank.folder() / "runs"};
  const Recipe recipe = small_recipe(options);
  EXPECT_EQ(recipe.comm.rendezvous_timeout_seconds, kRendezvous.count());
  const auto trials = plan_trials(recipe, parse_layouts("data=2; data=3", recipe, 3));
  ASSERT_EQ(trials.size(), 3);
  Store store = Store::connect(rank.store().endpoint(), Deadline::in(kRendezvous));
  const World world = world_of(rank, store.endpoint());
  const std::vector<std::string> arrivals = {arrival_key(world, trials[1], 1),
                                             arrival_key(world, trials[2], 2)};
  rank.wait_for_all("start");
  std::size_t ended = 0;
  run_trials(trials, 0, world, options, [&](const TrialResult& result) {
    EXPECT_TRUE(result.agrees()) << result.describe_failure();
    // Both have had nothing to do so far. They must not come, so the deadline passes.
    if (ended == 0) {
      EXPECT_FALSE(store.wait(arrivals, Deadline::in(Seconds(1))));
    }
    // And that is how one would have seen them.
    if (++ended == trials.size()) {
      EXPECT_TRUE(store.wait(arrivals, Deadline::in(kRendezvous)));
    }
  });
  EXPECT_EQ(ended, rank.index() == 0 ? trials.size() : 0);
}

RANK_TEST(Trials, TheWaitForTheEndOfATrialHasADeadline, 2) {
  const TrialOptions options{
      .steps = 1, .folder = rank.folder() / "runs", .step_timeout = Seconds(0.1)};
  const Recipe recipe = small_recipe(options);
  const auto trials = plan_trials(recipe, {});
  const World world = world_of(rank, rank.store().endpoint());
  if (rank.index() == 0) {
    run_trials(trials, 0, world, options, [&](const TrialResult&) {
      EXPECT_EQ(rank.store().get("gave up", Deadline::in(kRendezvous)), "");
    });
    return;
  }
  try {
    run_trials(trials, 0, world, options, {});
    ADD_FAILURE() << "the trial has not ended";
  } catch (const DeadlineError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'data=1' has not ended after 0.2 s"));
  }
  rank.store().set("gave up", "");
}

}  // namespace
}  // namespace troika::test
