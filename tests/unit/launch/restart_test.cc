#include "launched.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/launch/root_cause.h>
#include <troika/rendezvous/endpoint.h>

#include <string>
#include <vector>

#include "support/reserved_port.h"
#include "support/temporary_folder.h"

namespace troika::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class Restart : public ::testing::Test {
 protected:
  std::vector<std::string> job(const std::string& role, const std::string& most,
                               const std::vector<std::string>& ranks = {"--ranks", "2"}) const {
    std::vector<std::string> arguments = {role, "--max-restarts", most, "--steps",
                                          (folder_ / "steps").string()};
    arguments.insert(arguments.end(), ranks.begin(), ranks.end());
    return arguments;
  }

 private:
  const TemporaryFolder folder_;
};

TEST_F(Restart, GoesOnUntilAllIsWell) {
  const Finished finished = launched(job("advances", "2"));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.pids.size(), 6U);
  for (const int pid : finished.pids) EXPECT_FALSE(exists(pid)) << pid;
  const std::string death =
      "(.|\n)*rank 1 \\(host [^ ]+, pid [0-9]+\\) was killed by signal 9 \\(SIGKILL\\); starting "
      "again "
      "from step ";
  EXPECT_THAT(finished.err, MatchesRegex(death + "1, restart 1 of 2\n(.|\n)*"));
  EXPECT_THAT(finished.err, MatchesRegex(death + "2, restart 2 of 2\n(.|\n)*"));
}

// A user's own program, of whose steps the launcher knows nothing.
TEST_F(Restart, AProgramOfOnesOwnIsStartedAgainSoOften) {
  const Finished finished =
      launched({"dies-twice", "--max-restarts", "2", "--ranks", "2", "--words", "optional"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.pids.size(), 6U);
  EXPECT_THAT(finished.err, HasSubstr("was killed by signal 9 (SIGKILL); starting again, restart 1 "
                                      "of 2\n"));
  EXPECT_THAT(finished.err,
              HasSubstr("ended with exit status 3; starting again, restart 2 of 2\n"));
  const Finished less = launched({"dies-twice", "--max-restarts", "1", "--ranks", "2"});
  EXPECT_EQ(less.exit_code, 5);
  EXPECT_EQ(less.pids.size(), 4U);
}

TEST_F(Restart, EndsWhenAllAreUsedUp) {
  const Finished finished = launched(job("advances", "1"));
  EXPECT_EQ(finished.exit_code, 5);
  EXPECT_EQ(finished.pids.size(), 4U);
  EXPECT_THAT(finished.last_line, HasSubstr("was killed by signal 9 (SIGKILL)"));
}

TEST_F(Restart, IsNotTriedUnlessItIsAskedFor) {
  EXPECT_EQ(launched(job("advances", "0")).pids.size(), 2U);
}

TEST_F(Restart, ACrashLoopEndsWithItsFirstDeath) {
  const Finished finished = launched(job("dies-in-place", "9"));
  EXPECT_EQ(finished.exit_code, 5);
  EXPECT_EQ(finished.pids.size(), 4U);
  EXPECT_THAT(finished.err, HasSubstr("ended with exit status 3 and without a word; restart 1 has "
                                      "come no further than step 4: the job is not started again"));
  EXPECT_THAT(finished.last_line, MatchesRegex("troika: rank 1 .* was killed by signal 9 .*"));
}

TEST_F(Restart, StepsThatAreTakenAgainAreNoCrashLoop) {
  for (const char* role : {"redoes", "goes-back"}) {
    const Finished finished = launched(job(role, "9"));
    EXPECT_EQ(finished.exit_code, 5) << role;
    EXPECT_THAT(finished.err, HasSubstr("restart 2 has come no further than step 5: "));
  }
}

TEST_F(Restart, IsNotForErrorsThatComeAgain) {
  const Finished finished = launched(job("dies-then-fails", "9"));
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_EQ(finished.pids.size(), 4U);
  EXPECT_THAT(finished.last_line, HasSubstr("no data"));
}

TEST_F(Restart, IsOfAllNodesTogether) {
  const test::ReservedPort reserved;
  const auto node = [&](const std::string& rank) {
    return job("advances", "2",
               {"--nodes", "2", "--node-rank", rank, "--ranks-per-node", "2", "--rendezvous",
                Endpoint{"127.0.0.1", reserved.port()}.describe()});
  };
  Launched one(node("1")), zero(node("0"));
  for (const Finished& finished : {zero.wait(), one.wait()}) {
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    EXPECT_EQ(finished.pids.size(), 6U);
    EXPECT_THAT(finished.err, HasSubstr("starting again from step 2, restart 2 of 2"));
  }
}

TEST(MayNotRecur, IsSaidOfDeathsAndOfPeersThatAreGone) {
  const auto cause = [](CauseKind kind, ExitCode code) { return Cause{kind, 0, code, "", ""}; };
  EXPECT_TRUE(may_not_recur(cause(CauseKind::kDied, ExitCode::kRankDied)));
  EXPECT_TRUE(may_not_recur(cause(CauseKind::kFailed, ExitCode::kRankDied)));  // its device
  EXPECT_TRUE(may_not_recur(cause(CauseKind::kLost, ExitCode::kRankDied)));
  EXPECT_TRUE(may_not_recur(cause(CauseKind::kConsequence, ExitCode::kRendezvous)));
  EXPECT_FALSE(may_not_recur(cause(CauseKind::kRendezvous, ExitCode::kRendezvous)));
  EXPECT_FALSE(may_not_recur(cause(CauseKind::kDied, ExitCode::kStorage)));
  Cause outage = cause(CauseKind::kFailed, ExitCode::kStorage);
  outage.message = "cannot read 's3://b/a': AWS Error NETWORK_CONNECTION: curlCode: 7";
  EXPECT_TRUE(may_not_recur(outage));
  outage.message = "cannot write 's3://b/a': AWS Error ACCESS_DENIED";
  EXPECT_FALSE(may_not_recur(outage));
  EXPECT_FALSE(may_not_recur(cause(CauseKind::kInterrupted, ExitCode::kInterrupted)));
  for (const ExitCode code : {ExitCode::kUsage, ExitCode::kData, ExitCode::kNonFinite}) {
    EXPECT_FALSE(may_not_recur(cause(CauseKind::kFailed, code)));
  }
}

}  // namespace
}  // namespace troika::testing
