#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/rendezvous/failure_report.h>
#include <troika/rendezvous/rendezvous.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <optional>

#include "support/reserved_port.h"

namespace troika {
namespace {

using ::testing::HasSubstr;

const Agreement kSame{"1.0", "[train]\nsteps = 10\n"};

World world_at(const Endpoint& store, int rank, int size) {
  World world;
  world.rank = rank;
  world.size = size;
  world.host = "a";
  world.store = store;
  world.store_host = StoreHost::kLauncher;
  world.job = "test";
  return world;
}

// What became of one rank.
struct Outcome {
  std::optional<World> world;
  std::vector<Member> members;
  std::string error;
};

Outcome outcome_of(const std::function<Rendezvous()>& join) {
  try {
    Rendezvous rendezvous = join();
    rendezvous.leave(Deadline::in(Seconds(20)));
    return {rendezvous.world(), rendezvous.members(), ""};
  } catch (const RendezvousError& error) {
    return {std::nullopt, {}, error.what()};
  }
}

// Runs `join` for every rank at once.
std::vector<Outcome> all_ranks(int size, const std::function<Rendezvous(int rank)>& join) {
  std::vector<std::future<Outcome>> running;
  for (int rank = 0; rank < size; ++rank) {
    running.push_back(std::async(std::launch::async,
                                 [&, rank] { return outcome_of([&] { return join(rank); }); }));
  }
  std::vector<Outcome> outcomes;
  for (auto& one : running) outcomes.push_back(one.get());
  return outcomes;
}

// Whoever keeps the store.
TEST(Rendezvous, EveryRankHearsWhyOneCannotBegin) {
  for (const StoreHost host : {StoreHost::kLauncher, StoreHost::kRankZero}) {
    for (const int failing : {0, 2}) {
      const test::ReservedPort reserved;
      std::optional<Store> store;
      if (host == StoreHost::kLauncher) store = Store::host(reserved.port(), Reach::kThisHost);
      const auto world_of = [&](int rank) {
        World world = world_at({"127.0.0.1", reserved.port()}, rank, 3);
        world.store_host = host;
        world.job = "test " + std::to_string(static_cast<int>(host) * 10 + failing);
        return world;
      };
      const Failure failure{ExitCode::kData, "there is no 'net.pt'", "copy it", false};
      std::vector<std::future<std::string>> ranks;
      for (int rank = 0; rank < 3; ++rank) {
        ranks.push_back(std::async(std::launch::async, [&, rank]() -> std::string {
          const Deadline deadline = Deadline::in(Seconds(20));
          if (rank == failing) {
            report_failure(world_of(rank), failure, deadline);
            return "";
          }
          try {
            static_cast<void>(Rendezvous::join(world_of(rank), kSame, deadline));
          } catch (const DataError& error) {
            return error.what() + (" | " + error.hint());
          }
          return "it began";
        }));
      }
      for (int rank = 0; rank < 3; ++rank) {
        const std::string told =
            "rank " + std::to_string(failing) + " on host a: there is no 'net.pt' | copy it";
        EXPECT_EQ(ranks[static_cast<std::size_t>(rank)].get(), rank == failing ? "" : told);
      }
    }
  }
}

TEST(Rendezvous, EverybodyLearnsOfEverybody) {
  const Store store = Store::host(0, Reach::kThisHost);
  const auto outcomes = all_ranks(3, [&](int rank) {
    return Rendezvous::join(world_at(store.endpoint(), rank, 3), kSame, Deadline::in(Seconds(20)));
  });
  for (int rank = 0; rank < 3; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    ASSERT_EQ(outcome.error, "");
    ASSERT_EQ(outcome.members.size(), 3U);
    EXPECT_EQ(outcome.members[2].rank, 2);
    EXPECT_EQ(outcome.members[2].host, "a");
    EXPECT_EQ(outcome.members[2].pid, getpid());
    EXPECT_EQ(outcome.members[2].address, "127.0.0.1");
    // No launcher had said where the ranks are.
    EXPECT_EQ(outcome.world->local_rank, rank);
    EXPECT_EQ(outcome.world->local_size, 3);
    EXPECT_EQ(outcome.world->node_rank, 0);
    EXPECT_EQ(outcome.world->nodes, 1);
  }
}

TEST(Rendezvous, RankZeroKeepsTheStoreUntilAllHaveLeft) {
  const test::ReservedPort reserved;
  const auto outcomes = all_ranks(3, [&](int rank) {
    World world = world_at({"127.0.0.1", reserved.port()}, rank, 3);
    world.store_host = StoreHost::kRankZero;
    return Rendezvous::join(world, kSame, Deadline::in(Seconds(20)));
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
}

TEST(Rendezvous, ALoneRankNeedsNoStore) {
  Rendezvous alone = Rendezvous::join(World{}, kSame, Deadline::in(Seconds(0)));
  EXPECT_TRUE(alone.world().located());
  EXPECT_EQ(alone.members().size(), 1U);
  EXPECT_THROW((void)alone.store(), InternalError);
  alone.leave(Deadline::in(Seconds(0)));
}

TEST(Rendezvous, RanksThatDoNotComeAreNamed) {
  const Store store = Store::host(0, Reach::kThisHost);
  const auto outcomes = all_ranks(1, [&](int) {
    return Rendezvous::join(world_at(store.endpoint(), 1, 3), kSame, Deadline::in(Seconds(1)));
  });
  EXPECT_THAT(outcomes[0].error, HasSubstr("ranks 0 and 2 of 3 have not come after 1 s"));
}

// The rank that keeps the store gives up first, and its store ends with it.
TEST(Rendezvous, RanksThatDoNotComeAreNamedToAllBeforeTheStoreGoes) {
  for (const int size : {3, 5}) {
    const test::ReservedPort reserved;
    std::vector<std::future<Outcome>> running;
    for (int rank = 0; rank < size; ++rank) {
      if (rank == 1 || rank == 4) continue;
      running.push_back(std::async(std::launch::async, [&, rank] {
        World world = world_at({"127.0.0.1", reserved.port()}, rank, size);
        world.store_host = StoreHost::kRankZero;
        world.job = "of " + std::to_string(size);
        return outcome_of([&] {
          return Rendezvous::join(world, kSame, Deadline::in(Seconds(rank == 0 ? 1.5 : 30)));
        });
      }));
    }
    for (auto& each : running) {
      EXPECT_EQ(each.get().error, size == 3 ? "rank 1 of 3 has not come after 1.5 s"
                                            : "ranks 1 and 4 of 5 have not come after 1.5 s");
    }
  }
}

TEST(Rendezvous, RanksThatDisagreeOnTheRecipeAreNamed) {
  const Store store = Store::host(0, Reach::kThisHost);
  const auto outcomes = all_ranks(3, [&](int rank) {
    const Agreement mine{"1.0", rank == 2 ? "[train]\nsteps = 20\n" : kSame.recipe};
    return Rendezvous::join(world_at(store.endpoint(), rank, 3), mine, Deadline::in(Seconds(20)));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error,
              "rank 2 disagrees with rank 0 on the recipe: train.steps is 10 on rank 0 and 20 on "
              "rank 2");
  }
}

TEST(Rendezvous, DisagreementReachesAllWhenRankZeroKeepsTheStore) {
  const test::ReservedPort reserved;
  const auto outcomes = all_ranks(4, [&](int rank) {
    World world = world_at({"127.0.0.1", reserved.port()}, rank, 4);
    world.store_host = StoreHost::kRankZero;
    return Rendezvous::join(world, {rank == 0 ? "1.0" : "1.1", ""}, Deadline::in(Seconds(20)));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.error, HasSubstr("ranks 1, 2 and 3 disagree with rank 0 on the version"));
  }
}

TEST(Rendezvous, ARankThatIsClaimedTwiceIsNamed) {
  const Store store = Store::host(0, Reach::kThisHost);
  World world = world_at(store.endpoint(), 0, 2);
  const auto error_of_join = [&](Seconds timeout = Seconds(30)) {
    return outcome_of([&] { return Rendezvous::join(world, kSame, Deadline::in(timeout)); }).error;
  };
  world.job = "of this process";
  EXPECT_THAT(error_of_join(Seconds(2)), HasSubstr("rank 1 of 2 has not come"));
  EXPECT_THAT(error_of_join(),
              HasSubstr("this process has joined this job before, or tried to, as rank 0 of 2"));
  world.job = "of another process";
  store.with_prefix(key_prefix(world.job)).add("claims/0", 1);
  EXPECT_THAT(error_of_join(), HasSubstr("two processes claim to be rank 0 of 2"));
}

TEST(Rendezvous, WithoutAStoreItNamesTheEndpoint) {
  const test::ReservedPort reserved;  // no process listens there
  const Endpoint nobody{"127.0.0.1", reserved.port()};
  const auto outcomes = all_ranks(1, [&](int) {
    return Rendezvous::join(world_at(nobody, 1, 2), kSame, Deadline::in(Seconds(0.5)));
  });
  EXPECT_THAT(outcomes[0].error,
              HasSubstr("no rendezvous at " + nobody.describe() + " after 0.5 s"));
}

}  // namespace
}  // namespace troika
