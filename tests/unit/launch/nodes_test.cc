#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/launch/nodes.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/store.h>

#include <future>

#include "support/reserved_port.h"

namespace troika {
namespace {

using ::testing::HasSubstr;

constexpr Seconds kTimeout{30};

// Node 0 of two; the other launcher is played by the test, at the store.
class NodeZero {
 public:
  explicit NodeZero(const std::string& outcome_of_the_other) {
    plan_.ranks = plan_.nodes = 2;
    plan_.rendezvous = Endpoint{"127.0.0.1", reserved_.port()};
    outcome_ = outcome_of_the_other;
  }

  std::optional<Cause> agree_on_cause(const std::optional<Cause>& mine) {
    auto other = std::async(std::launch::async, [this] { play_other(); });
    Nodes nodes(plan_, "1.0", Deadline::in(kTimeout), {0, 40});
    history_ = nodes.history();
    const auto cause = nodes.agree_on_cause(mine, Deadline::in(kTimeout), [] { return false; });
    other.get();
    return cause;
  }

  [[nodiscard]] const JobHistory& history() const { return history_; }

 private:
  void play_other() const {
    const Deadline deadline = Deadline::in(kTimeout);
    Store store = Store::connect(*plan_.rendezvous, deadline);
    const std::string prefix = "launchers/";
    store.set(prefix + "history/1", "2 30 20");
    store.set(prefix + "terms/1", store.get(prefix + "terms/0", deadline));
    store.set(prefix + "outcome/1", outcome_);
    store.set(prefix + "read/1", "");
    (void)store.wait({prefix + "read/0"}, deadline);
  }

  const test::ReservedPort reserved_;
  LaunchPlan plan_;
  std::string outcome_;
  JobHistory history_;
};

TEST(Nodes, TheFirstCauseOfAllIsTold) {
  const Cause theirs{CauseKind::kDied, 0, ExitCode::kRankDied, "rank 1 was killed", ""};
  const Cause mine{CauseKind::kConsequence, 0, ExitCode::kRendezvous, "rank 1 is gone", ""};
  EXPECT_EQ(NodeZero(encode(theirs)).agree_on_cause(mine)->message, "rank 1 was killed");
  EXPECT_FALSE(NodeZero("fine").agree_on_cause(std::nullopt).has_value());
}

// One whose launcher has come back knows of no start before.
TEST(Nodes, HaveTheHistoryOfTheMostStarts) {
  NodeZero node("fine");
  EXPECT_FALSE(node.agree_on_cause(std::nullopt).has_value());
  EXPECT_EQ(node.history().restarts, 2);
  EXPECT_EQ(node.history().reached, 30);
  EXPECT_EQ(node.history().checkpoint, 20);
}

// Node 1 of three has come back, and node 2 has not.
TEST(Nodes, OneThatHasComeBackHearsWhomNodeZeroGoesOnWith) {
  const test::ReservedPort reserved;
  Store store = Store::host(reserved.port(), Reach::kThisHost);
  LaunchPlan plan;
  plan.ranks = plan.nodes = 3;
  plan.node_rank = 1;
  plan.rendezvous = Endpoint{"127.0.0.1", reserved.port()};
  const std::string prefix = "launchers/";
  store.set(prefix + "run", "run");
  store.set(prefix + "history/0", "1 40 20");
  auto decision = std::async(std::launch::async, [&] {
    const Deadline deadline = Deadline::in(kTimeout);
    store.set(prefix + "terms/0", store.get(prefix + "terms/1", deadline));
    store.set(prefix + "members", "0 1");
  });
  const auto began = Clock::now();
  const Nodes nodes(plan, "1.0", Deadline::in(kTimeout), {}, [](const LaunchPlan&) { return ""; });
  EXPECT_LT(Clock::now() - began, kTimeout / 2);
  decision.get();
  EXPECT_EQ(nodes.plan().nodes, 2);
  EXPECT_EQ(nodes.plan().node_rank, 1);
  EXPECT_EQ(nodes.history().restarts, 1);
}

// Either node cannot begin, since a file is missing there, say.
TEST(Nodes, HearAtOnceWhyAnotherCannotBegin) {
  for (const int failing : {0, 1}) {
    const test::ReservedPort reserved;
    const auto plan_of = [&](int node) {
      LaunchPlan plan;
      plan.ranks = plan.nodes = 2;
      plan.node_rank = node;
      plan.rendezvous = Endpoint{"127.0.0.1", reserved.port()};
      return plan;
    };
    const Failure failure{ExitCode::kData, "there is no 'net.pt'", "copy it", false};
    auto reported = std::async(std::launch::async, [&] {
      Nodes::report_failure(plan_of(failing), failure, Deadline::in(kTimeout));
    });
    const auto began = Clock::now();
    try {
      const Nodes nodes(plan_of(1 - failing), "1.0", Deadline::in(kTimeout));
      ADD_FAILURE() << "it began";
    } catch (const DataError& error) {
      EXPECT_EQ(error.what(), "node " + std::to_string(failing) + " on host " + host_name() +
                                  ": there is no 'net.pt'");
      EXPECT_EQ(error.hint(), "copy it");
    }
    EXPECT_LT(Clock::now() - began, kTimeout / 2);
    reported.get();
  }
}

TEST(Nodes, WhatCannotBeReadHidesNoCause) {
  const Cause mine{CauseKind::kFailed, 0, ExitCode::kData, "rank 0: no data", ""};
  EXPECT_EQ(NodeZero("garbage").agree_on_cause(mine)->message, "rank 0: no data");
  const std::optional<Cause> theirs = NodeZero("garbage").agree_on_cause(std::nullopt);
  ASSERT_TRUE(theirs.has_value());
  EXPECT_EQ(theirs->code, ExitCode::kRankDied);
  EXPECT_THAT(theirs->message, HasSubstr("node 1 has failed, and why cannot be read"));
}

}  // namespace
}  // namespace troika
