// A session's own calls, on a group and in a world of its own.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/comm/engines.h>
#include <troika/observe/recorder.h>
#include <troika/observe/saved_error.h>
#include <troika/session/session.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "ranks/own_module/own_world.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

RANK_TEST(Session, AveragesAndSums, 1, 2, 3) {
  const Session session = Session::on(rank.group(), Seconds(30));
  const double n = session.size(), r = session.rank();
  EXPECT_EQ(session.sum(r + 1, "sum"), n * (n + 1) / 2);
  EXPECT_DOUBLE_EQ(session.average(r, "average"), (n - 1) / 2);
  // A mean over r + 1 samples on rank r, each of which is worth r.
  EXPECT_DOUBLE_EQ(session.average(r, r + 1, "weighted"), 2 * (n - 1) / 3);
  EXPECT_TRUE(std::isnan(session.average(1, 0, "nothing")));
  const double without = session.average(r == 0 ? NAN : r, r, "a rank without samples");
  if (n > 1) {
    EXPECT_DOUBLE_EQ(without, (2 * n - 1) / 3);
  }
  for (const double count : {-1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    EXPECT_THROW((void)session.average(1, count, "count"), UsageError);
    EXPECT_THROW((void)session.average({{"loss", 1}}, count), UsageError);
  }
  const at::Tensor turned = at::full({2, 3}, r, at::kDouble).t();
  EXPECT_TRUE(
      at::equal(session.sum(turned, "tensor"), at::full({3, 2}, n * (n - 1) / 2, at::kDouble)));
  EXPECT_TRUE(
      at::equal(session.average(turned, "tensor"), at::full({3, 2}, (n - 1) / 2, at::kDouble)));
  session.barrier("barrier");
}

RANK_TEST(Session, SeedsByRank, 3) {
  const Session session = Session::on(rank.group(), Seconds(30));
  const auto draws = [&](std::uint64_t seed) {
    session.seed_by_rank(seed);
    return std::to_string(at::rand({1}, at::kDouble).item<double>());
  };
  const std::vector<std::string> all = session.gather(draws(1), "draws");
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), all.size());
  EXPECT_NE(draws(2), all[static_cast<std::size_t>(session.rank())]);
  EXPECT_EQ(draws(1), all[static_cast<std::size_t>(session.rank())]);
}

RANK_TEST(Session, AveragesMetrics, 2, 3) {
  const Session session = Session::on(rank.group(), Seconds(30));
  const double r = session.rank();
  const auto mean = session.average({{"loss", r}, {"accuracy", 2 * r}});
  EXPECT_DOUBLE_EQ(mean.at("loss"), (session.size() - 1) / 2.0);
  EXPECT_DOUBLE_EQ(mean.at("accuracy"), session.size() - 1);
  const auto weighted = session.average({{"loss", r}}, r + 1);
  EXPECT_DOUBLE_EQ(weighted.at("loss"), 2 * (session.size() - 1) / 3.0);
  const std::string own = session.rank() == 1 ? "los" : "loss";
  try {
    (void)session.average({{own, 1}});
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("are [los] on rank 1, and [loss] on rank 0"));
  }
}

RANK_TEST(Session, GathersTexts, 1, 3) {
  const Session session = Session::on(rank.group(), Seconds(30));
  const auto texts = session.gather(std::string(static_cast<std::size_t>(rank.index()), 'x'), "x");
  ASSERT_EQ(static_cast<int>(texts.size()), rank.size());
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i], std::string(i, 'x'));
}

RANK_TEST(Session, JoinsAWorld, 1, 2) {
  SessionOptions options;
  options.rendezvous_timeout = Seconds(30);
  options.recorders = rank.folder() / "recorders";
  const Session session = Session::join(world_of(rank), options);
  EXPECT_EQ(session.rank(), rank.index());
  EXPECT_EQ(static_cast<int>(session.members().size()), rank.size());
  EXPECT_EQ(session.sum(1, "ranks"), rank.size());
  if (rank.size() > 1) {
    const Group turned = session.make_group("pair", {0, 1}, rank.index());
    turned.barrier(session.call("pair")).wait();
    EXPECT_TRUE(std::filesystem::exists(recorder_path(options.recorders, rank.index())));
  }
  session.leave();
}

RANK_TEST(Session, DuplicatesItsWorldOnceForEachAxis, 2) {
  SessionOptions options;
  options.rendezvous_timeout = Seconds(30);
  options.recorders = rank.folder() / "recorders";
  const Session session = Session::join(world_of(rank), options);
  const Group norms = session.duplicate_world("norms");
  const Group other = session.duplicate_world("other");
  if (rank.index() == 0) norms.abort("no more norms");
  EXPECT_THROW(session.duplicate_world("norms").barrier(session.call("norms")).wait(), PeerError);
  other.barrier(session.call("other")).wait();
  session.barrier("world");
  const auto left = read_saved_error(options.recorders, rank.index());
  ASSERT_TRUE(left);
  EXPECT_THAT(left->failure.message, testing::HasSubstr("no more norms"));
  session.leave();
}

RANK_TEST(Session, RanksMustAgree, 2) {
  SessionOptions options;
  options.rendezvous_timeout = Seconds(30);
  options.name = rank.index() == 0 ? "a" : "b";
  try {
    (void)Session::join(world_of(rank), options);
    ADD_FAILURE() << "no error";
  } catch (const RendezvousError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("on the options of the session: session.name"));
    EXPECT_THAT(error.hint(), testing::Not(testing::HasSubstr("--set")));
  }
}

RANK_TEST(Session, AnotherEngineIsNamed, 2) {
  SessionOptions options;
  options.rendezvous_timeout = Seconds(30);
  options.engine = rank.index() == 0 ? "shm" : "gloo";
  try {
    (void)Session::join(world_of(rank), options);
    ADD_FAILURE() << "no error";
  } catch (const RendezvousError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr(R"(session.engine is "shm" on rank 0 and "gloo" on rank 1)"));
  }
}

// Built or a stub: every rank is told in a line what is missing, and in another what to do.
RANK_FUNCTION(asks_for_nccl) {
  const auto engines = list_engines();
  const auto nccl = std::ranges::find(engines, "nccl", &EngineFacts::name);
  ASSERT_NE(nccl, engines.end());
  EXPECT_THAT(
      nccl->reason,
      testing::HasSubstr(nccl->built ? "this process sees no GPU"
                                     : "is built where NCCL and the CUDA toolkit are found"));
  SessionOptions options;
  options.rendezvous_timeout = Seconds(30);
  options.engine = "nccl";
  try {
    (void)Session::join(world_of(rank), options);
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    const std::string refusal = nccl->built ? "cannot be used: " : "is not built: ";
    EXPECT_EQ(error.what(), "engine nccl " + refusal + nccl->reason);
    EXPECT_THAT(error.hint(), testing::StartsWith("write comm.engine = \"auto\""));
  }
}

TEST(Session, NcclSaysWhyItCannotBeUsed) {
  for (const EngineFacts& each : list_engines()) {
    if (each.name == "nccl" && each.usable) {
      GTEST_SKIP() << "NCCL can be used here: there is a GPU";
    }
  }
  expect_ranks("asks_for_nccl", 2);
}

TEST(Session, TimeOutsThatAreNoneAreRefused) {
  for (const double seconds : {0.0, -1.0, 1e300, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()}) {
    SessionOptions options;
    options.timeout = Seconds(seconds);
    EXPECT_THROW((void)Session::from_environment(options), UsageError) << seconds;
    options.timeout = Seconds(1);
    options.rendezvous_timeout = Seconds(seconds);
    EXPECT_THROW((void)Session::from_environment(options), UsageError) << seconds;
  }
}

// As an engine's own, which no code has checked.
TEST(Session, DeadlinesThatAreTooFarAreFar) {
  EXPECT_FALSE(Deadline::in(Seconds(std::numeric_limits<double>::infinity())).passed());
  EXPECT_FALSE(Deadline::in(Seconds(1e300)).passed());
  EXPECT_TRUE(Deadline::in(Seconds(std::numeric_limits<double>::quiet_NaN())).passed());
  EXPECT_TRUE(Deadline::in(Seconds(-1)).passed());
}

TEST(Session, AProcessAloneIsAWorldOfOne) {
  const Session session = Session::from_environment();
  EXPECT_EQ(session.size(), 1);
  EXPECT_EQ(session.average(3, "alone"), 3);
  session.leave();
}

}  // namespace
}  // namespace troika::test
