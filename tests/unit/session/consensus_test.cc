// Ranks that all say the same, on the engine `fake`; those that differ are in
// tests/ranks/consensus_test.cc.
#include <troika/session/consensus.h>

#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/comm/engines.h>

namespace troika {
namespace {

using testing::ElementsAre;

Session session_of_three() {
  EngineOptions options;
  options.engine = "fake";
  return Session::on(make_group("world", {0, 1, 2}, 0, options));
}

template <class Expected, class Action>
std::string told_by(const Action& action) {
  try {
    action();
  } catch (const Expected& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "nothing";
}

TEST(Consensus, GroupsWhatRanksSay) {
  const auto said = statements_of({"", "b", "a", "b", ""});
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0].text, "b");
  EXPECT_THAT(said[0].ranks, ElementsAre(1, 3));
  EXPECT_EQ(said[1].text, "a");
  EXPECT_THAT(said[1].ranks, ElementsAre(2));
  EXPECT_EQ(ranks_in_words(said[0].ranks), "ranks 1 and 3");
  EXPECT_EQ(ranks_in_words(said[1].ranks), "rank 2");
}

TEST(Consensus, NamesHostsWhereThereAreSeveral) {
  std::vector<Member> members(4);
  for (Member& each : members) each.host = "a";
  EXPECT_EQ(ranks_in_words({1}, members), "rank 1");
  EXPECT_EQ(ranks_in_words({1}, {}), "rank 1");
  members[2].host = members[3].host = "b";
  EXPECT_EQ(ranks_in_words({1}, members), "rank 1 on host a");
  EXPECT_EQ(ranks_in_words({2, 3}, members), "ranks 2 and 3 on host b");
  EXPECT_EQ(ranks_in_words({0, 2, 3}, members), "ranks 0, 2 and 3 on hosts a and b");
}

TEST(Consensus, ThrowsTheTypeOfTheFailure) {
  const Session session = session_of_three();
  EXPECT_EQ(told_by<UsageError>([&] {
              throw_on_all_ranks(session, Failure{ExitCode::kUsage, "no layers", "add one"}, "own");
            }),
            "no layers, on ranks 0, 1 and 2 | add one");
  EXPECT_EQ(told_by<StorageError>([&] {
              run_on_all_ranks(
                  session, [] { throw StorageError("no space"); }, "own", NameRanks::kUnlessAll);
            }),
            "no space | ");
  EXPECT_EQ(told_by<InternalError>([&] {
              run_on_all_ranks(
                  session, [] { throw std::runtime_error("odd"); }, "own");
            }),
            "internal error: odd, on ranks 0, 1 and 2 | this is a bug in troika; please report it "
            "with the command and the recipe");
}

TEST(Consensus, IsSilentWhereAllIsWell) {
  for (const Session& session : {session_of_three(), Session::on(Group())}) {
    bool ran = false;
    throw_on_all_ranks(session, std::nullopt, "own");
    run_on_all_ranks(
        session, [&] { ran = true; }, "own");
    EXPECT_TRUE(ran);
    EXPECT_FALSE(find_difference(session, "the same", "own"));
  }
}

}  // namespace
}  // namespace troika
