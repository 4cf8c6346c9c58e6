#include "launched.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/observe/recorder.h>
#include <troika/observe/saved_error.h>
#include <troika/rendezvous/endpoint.h>
#include <troika/rendezvous/store.h>

#include <algorithm>
#include <csignal>
#include <sstream>

#include "support/reserved_port.h"
#include "support/temporary_folder.h"

namespace troika::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// "Within seconds", with room for a busy machine: a second to report, two of grace.
constexpr double kSeconds = 10;

std::vector<std::string> lines_of(const std::string& text, const std::string& start = "") {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(start)) lines.push_back(line);
  }
  return lines;
}

void expect_nothing_left(const Finished& finished, std::size_t ranks) {
  EXPECT_EQ(finished.pids.size(), ranks);
  for (const int pid : finished.pids) EXPECT_FALSE(exists(pid)) << pid;
  EXPECT_LT(finished.seconds, kSeconds);
}

TEST(Agent, CollectsResults) {
  const Finished finished = launched({"done", "--ranks", "3"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(lines_of(finished.out, "result"),
              ElementsAre("result {\"rank\": 0}", "result {\"rank\": 1}", "result {\"rank\": 2}"));
  expect_nothing_left(finished, 3);
}

TEST(Agent, RanksMeetAtItsStore) {
  const Finished finished = launched({"meet", "--ranks", "3"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(lines_of(finished.out, "result"),
              ElementsAre("result [0, 3, 0, 3, 0, 3]", "result [1, 3, 1, 3, 0, 3]",
                          "result [2, 3, 2, 3, 0, 3]"));
}

TEST(Agent, SharesTheCoresAmongItsRanks) {
  const auto threads = [](const char* cores) {
    return launched({"threads", "--ranks", "2", "--cores", cores}).out;
  };
  EXPECT_THAT(threads("5"), HasSubstr("result 2\n"));
  EXPECT_THAT(threads("1"), HasSubstr("result 1\n"));
}

// Rank 0 to the first core that this process may use; the other rank has all of them.
TEST(Agent, BindsARankToItsCores) {
  const std::string all = std::to_string(allowed_cores().size());
  EXPECT_THAT(lines_of(launched({"cores", "--ranks", "2", "--cores", "8", "--bind", "first"}).out,
                       "result"),
              ElementsAre("result [1, 1]", "result [" + all + ", 4]"));
}

TEST(Agent, KeepsLinesWholeAndNamesTheirRank) {
  const Finished finished = launched({"talk", "--ranks", "3"});
  EXPECT_EQ(finished.exit_code, 0);
  const auto lines = lines_of(finished.out);
  const auto is_line = [] {
    return MatchesRegex(
        "(\\[rank [12]\\] )?(out [012] [0-9]{3} end|pid [0-9]+|no newline)"
        "|(no newline)?result .*");
  };
  for (const std::string& line : lines) EXPECT_THAT(line, is_line());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "out 0 199 end"), 1);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "[rank 2] out 2 199 end"), 1);
  EXPECT_THAT(lines_of(finished.err, "[rank 1] err 1").size(), 200U);
  EXPECT_THAT(lines_of(finished.err, "err 0").size(), 200U);
}

TEST(Agent, ADeathIsTheRootCause) {
  const Finished finished = launched({"killed", "--ranks", "3"});
  EXPECT_EQ(finished.exit_code, 5);
  EXPECT_THAT(finished.last_line, MatchesRegex("troika: rank 1 \\(host [^ ]+, pid [0-9]+\\) was "
                                               "killed by signal 9 \\(SIGKILL\\)"));
  EXPECT_THAT(finished.err, HasSubstr("hint: the kernel kills processes when memory runs out"));
  expect_nothing_left(finished, 3);
}

TEST(Agent, AnExitWithoutAWordIsADeath) {
  const Finished finished = launched({"exits", "--ranks", "2"});
  EXPECT_EQ(finished.exit_code, 5);
  EXPECT_THAT(finished.last_line, HasSubstr("ended with exit status 3 and without a word"));
  EXPECT_EQ(launched({"quiet", "--ranks", "1"}).exit_code, 5);
}

TEST(Agent, ACrashAfterTheResultIsADeath) {
  const Finished finished = launched({"crashes-after-its-result", "--ranks", "2"});
  EXPECT_EQ(finished.exit_code, 5);
  EXPECT_THAT(finished.last_line,
              HasSubstr("signal 11 (SIGSEGV), though it had reported a result"));
}

TEST(Agent, AnErrorKeepsItsCodeAndHint) {
  const Finished finished = launched({"fails", "--ranks", "3"});
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_THAT(finished.last_line, MatchesRegex("troika: rank 1 \\(host [^ ]+\\): no data"));
  EXPECT_THAT(finished.err, HasSubstr("hint: get some"));
  expect_nothing_left(finished, 3);
}

TEST(Agent, AnErrorOfAllRanksIsToldOnceAndNamesNone) {
  const Finished finished = launched({"fails-alike", "--ranks", "3"});
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_THAT(lines_of(finished.err), ElementsAre("troika: no data", "  hint: get some"));
}

TEST(Agent, AnUntypedErrorIsInternal) {
  const Finished finished = launched({"throws", "--ranks", "1"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_EQ(finished.last_line, "troika: internal error: what a surprise");
}

TEST(Agent, ARankThatHangsAfterItsErrorHoldsNobodyUp) {
  const Finished finished = launched({"hangs-after-failing", "--ranks", "2"});
  EXPECT_EQ(finished.exit_code, 3);
  expect_nothing_left(finished, 2);
}

TEST(Agent, ADeathThatComesAfterItsConsequenceIsStillTheCause) {
  const Finished finished = launched({"peer-first", "--ranks", "2"});
  EXPECT_EQ(finished.exit_code, 5);
  EXPECT_THAT(finished.last_line, HasSubstr("was killed by signal 11 (SIGSEGV)"));
}

TEST(Agent, AConsequenceIsToldWhenThereIsNothingElse) {
  const Finished finished = launched({"late", "--ranks", "2"});
  EXPECT_EQ(finished.exit_code, 4);
  EXPECT_THAT(finished.last_line, HasSubstr("rank 1 is late"));
}

TEST(Agent, ACrashOnTheWayOutIsNotTheCause) {
  const Finished finished = launched({"crashes-on-the-way-out", "--ranks", "2"});
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_THAT(finished.last_line, HasSubstr("no data"));
}

TEST(Agent, SurvivorsAreToldThroughTheStore) {
  const Finished finished = launched({"told", "--ranks", "2"});
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_THAT(lines_of(finished.out, "told: "),
              ElementsAre(MatchesRegex("told: rank 1 \\(host [^ ]+, pid [0-9]+\\) has failed: no "
                                       "data")));
  EXPECT_THAT(finished.out, HasSubstr("\nget some\n"));  // the hint
}

TEST(Agent, ADeathIsToldWithWhatTheRankDidLast) {
  const TemporaryFolder folder;
  const Finished finished =
      launched({"told-of-an-exit", "--ranks", "2", "--recorders", folder.path().string()});
  EXPECT_EQ(finished.exit_code, 5);
  const std::string exit_message =
      "rank 1 \\(host [^ ]+, pid [0-9]+\\) was killed by signal 9 \\(SIGKILL\\); it last completed "
      "all_reduce 'loss' [^ ]+ [mun]?s ago";
  EXPECT_THAT(lines_of(finished.out, "told: "), ElementsAre(MatchesRegex("told: " + exit_message)));
  EXPECT_THAT(finished.out, HasSubstr("\nthe kernel kills processes when memory runs out"));
  EXPECT_THAT(finished.last_line, MatchesRegex("troika: " + exit_message));
}

// Of another job that has used the folder before.
TEST(Agent, AnOldRecordIsNotToldOfADeath) {
  const TemporaryFolder folder;
  const auto old = Recorder::create(recorder_path(folder.path(), 1), 1, "");
  old->end(old->begin({"all_reduce", "world", "loss"}));
  const Finished finished =
      launched({"killed", "--ranks", "2", "--recorders", folder.path().string()});
  EXPECT_THAT(finished.last_line, HasSubstr("was killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(finished.last_line, Not(HasSubstr("all_reduce")));
}

TEST(Agent, AnErrorOfAnOldJobIsNotToldOfThis) {
  const TemporaryFolder folder;
  for (const int rank : {0, 1}) save_error(folder.path(), rank, PeerError("of an old job"));
  const Finished finished = launched(
      {"stubborn", "--ranks", "2", "--recorders", folder.path().string(), "--words", "optional"});
  EXPECT_THAT(finished.last_line, HasSubstr("exit status 3"));
  EXPECT_THAT(finished.err, Not(HasSubstr("of an old job")));
}

TEST(Agent, RanksThatIgnoreSignalsOrAreStoppedEndAsWell) {
  for (const char* role : {"stubborn", "stopped"}) {
    const Finished finished = launched({role, "--ranks", "2"});
    EXPECT_EQ(finished.exit_code, 5) << role;
    EXPECT_THAT(finished.last_line, HasSubstr("rank 1")) << role;
    EXPECT_THAT(finished.last_line, HasSubstr("exit status 3")) << role;
    expect_nothing_left(finished, 2);
  }
}

TEST(Agent, ARankThatIsStoppedIsAskedToEnd) {
  const Finished finished = launched({"stopped-and-tidy", "--ranks", "2"});
  EXPECT_THAT(finished.last_line, HasSubstr("rank 1"));
  EXPECT_THAT(finished.out, HasSubstr("ending once"));
  expect_nothing_left(finished, 2);
}

TEST(Agent, GrandchildrenEndToo) {
  const Finished finished = launched({"grandchild", "--ranks", "1"});
  EXPECT_EQ(finished.exit_code, 5);
  ASSERT_EQ(finished.pids.size(), 2U);
  // Another process reaps it.
  EXPECT_TRUE(WatchedProcess(finished.pids[1]).ends_within(Seconds(kSeconds)));
}

TEST(Agent, ACommandThatCannotStartIsAUsageError) {
  const Finished finished = launched({"done", "--ranks", "2", "--command", "no-such-command"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.last_line, HasSubstr("cannot start 'no-such-command'"));
}

TEST(Agent, CtrlCEndsEverythingOnce) {
  Launched launcher({"interrupted", "--ranks", "2"});
  launcher.wait_for("ready\n", 2);
  launcher.signal(SIGINT);
  const Finished finished = launcher.wait();
  EXPECT_EQ(finished.exit_code, 130);
  EXPECT_THAT(lines_of(finished.err), ElementsAre("troika: interrupted"));
  EXPECT_THAT(lines_of(finished.out, "ending once"), ElementsAre("ending once"));
  EXPECT_THAT(lines_of(finished.out, "[rank 1] ending once").size(), 1U);
  expect_nothing_left(finished, 2);
}

TEST(Agent, RanksThatDoNotListenEndOnCtrlC) {
  Launched launcher({"hang", "--ranks", "2"});
  launcher.wait_for("pid ", 2);
  launcher.signal(SIGINT);
  const Finished finished = launcher.wait();
  EXPECT_EQ(finished.exit_code, 130);
  expect_nothing_left(finished, 2);
}

TEST(Agent, ASecondCtrlCKillsAtOnce) {
  Launched launcher({"stubborn", "--ranks", "1"});
  launcher.wait_for("ready", 1);
  const auto start = Clock::now();
  launcher.signal(SIGINT);
  launcher.signal(SIGTERM);  // two of a kind may become one
  const Finished finished = launcher.wait();
  EXPECT_THAT(finished.exit_code, AnyOf(130, 143));            // whichever came first
  EXPECT_LT(Seconds(Clock::now() - start).count(), kSeconds);  // less than the grace
}

// As timeout(1) does: to its child, and to the child's group.
TEST(Agent, TheSameSignalTwiceIsOneRequest) {
  for (const int number : {SIGTERM, SIGINT}) {
    Launched launcher({number == SIGTERM ? "terminated" : "interrupted", "--ranks", "2"});
    launcher.wait_for("ready\n", 2);
    launcher.signal(number);
    launcher.signal(number);
    const Finished finished = launcher.wait();
    EXPECT_THAT(lines_of(finished.out, "ending once"), ElementsAre("ending once"));
    EXPECT_THAT(lines_of(finished.out, "[rank 1] ending once").size(), 1U);
    EXPECT_EQ(finished.exit_code, 128 + number);
  }
}

TEST(Agent, SigtermIsPassedOn) {
  Launched launcher({"terminated", "--ranks", "2"});
  launcher.wait_for("ready\n", 2);
  launcher.signal(SIGTERM);
  const Finished finished = launcher.wait();
  EXPECT_EQ(finished.exit_code, 143);
  EXPECT_THAT(lines_of(finished.err), ElementsAre("troika: interrupted by SIGTERM"));
}

TEST(Agent, RanksDieWithTheirLauncher) {
  Launched launcher({"hang", "--ranks", "2"});
  launcher.wait_for("pid ", 2);
  kill(launcher.pid(), SIGKILL);
  const Finished finished = launcher.wait();
  EXPECT_EQ(finished.exit_code, 137);
  ASSERT_EQ(finished.pids.size(), 2U);
  for (const int pid : finished.pids) {
    EXPECT_TRUE(WatchedProcess(pid).ends_within(Seconds(kSeconds)));
  }
}

// As of a script with a child in the background.
TEST(Agent, GrandchildrenDieWithTheirLauncher) {
  Launched launcher({"parent", "--ranks", "2"});
  launcher.wait_for("pid ", 4);
  kill(launcher.pid(), SIGKILL);
  const Finished finished = launcher.wait();
  EXPECT_EQ(finished.exit_code, 137);
  ASSERT_EQ(finished.pids.size(), 4U);
  for (const int pid : finished.pids) {
    EXPECT_TRUE(WatchedProcess(pid).ends_within(Seconds(kSeconds)));
  }
}

TEST(Agent, RanksMayBeBehindAWrapper) {
  for (const char* wrapper : {"sh", "setsid"}) {
    const Finished finished = launched({"done", "--ranks", "2", "--behind", wrapper});
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    EXPECT_THAT(lines_of(finished.out, "result"),
                ElementsAre("result {\"rank\": 0}", "result {\"rank\": 1}"));
    EXPECT_EQ(launched({"fails", "--ranks", "2", "--behind", wrapper}).exit_code, 3);
  }
}

TEST(Agent, AWrapperMayCloseTheReportSocket) {
  const Finished finished =
      launched({"done", "--ranks", "2", "--behind", "close", "--words", "optional"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
}

// Its process group is not the one that the launcher signals, either.
TEST(Agent, RanksBehindAWrapperDieWithTheirLauncher) {
  Launched launcher({"hang", "--ranks", "2", "--behind", "setsid"});
  launcher.wait_for("pid ", 2);
  kill(launcher.pid(), SIGKILL);
  const Finished finished = launcher.wait();
  ASSERT_EQ(finished.pids.size(), 2U);
  for (const int pid : finished.pids) {
    EXPECT_TRUE(WatchedProcess(pid).ends_within(Seconds(kSeconds)));
  }
}

TEST(Agent, RanksBehindAWrapperEndWithTheJob) {
  const Finished finished = launched({"exits", "--ranks", "2", "--behind", "setsid"});
  EXPECT_EQ(finished.exit_code, 5);
  ASSERT_EQ(finished.pids.size(), 2U);
  for (const int pid : finished.pids) {
    EXPECT_TRUE(WatchedProcess(pid).ends_within(Seconds(kSeconds)));
  }
}

// Two launchers of a job, here on one host.
class TwoNodes : public ::testing::Test {
 protected:
  const test::ReservedPort reserved_;
  const std::string where_ = Endpoint{"127.0.0.1", reserved_.port()}.describe();

  std::vector<std::string> node(int rank, const std::string& role,
                                const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {
        role, "--nodes",      "2",   "--node-rank", std::to_string(rank), "--ranks-per-node",
        "2",  "--rendezvous", where_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(TwoNodes, RanksOfAllNodesMeet) {
  Launched one(node(1, "meet")), zero(node(0, "meet"));
  const Finished first = zero.wait(), second = one.wait();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(lines_of(first.out, "result"),
              ElementsAre("result [0, 4, 0, 2, 0, 4]", "result [1, 4, 1, 2, 0, 4]"));
  EXPECT_THAT(lines_of(second.out, "result"),
              ElementsAre("result [2, 4, 0, 2, 1, 4]", "result [3, 4, 1, 2, 1, 4]"));
}

TEST_F(TwoNodes, AllTellTheSameRootCause) {
  Launched one(node(1, "killed")), zero(node(0, "killed"));
  const Finished first = zero.wait(), second = one.wait();
  EXPECT_EQ(first.exit_code, 5);
  EXPECT_EQ(second.exit_code, 5);
  EXPECT_THAT(first.last_line, HasSubstr("rank 1 (host"));
  EXPECT_EQ(first.last_line, second.last_line);
  expect_nothing_left(first, 2);
  expect_nothing_left(second, 2);
}

TEST_F(TwoNodes, CtrlCOnOneEndsBoth) {
  Launched one(node(1, "hang")), zero(node(0, "hang"));
  zero.wait_for("pid ", 2);
  one.wait_for("pid ", 2);
  one.signal(SIGINT);
  const Finished first = zero.wait(), second = one.wait();
  EXPECT_EQ(first.exit_code, 130);
  EXPECT_EQ(second.exit_code, 130);
  EXPECT_THAT(first.last_line, StartsWith("troika: interrupted on host"));
  EXPECT_EQ(first.last_line, second.last_line);
}

TEST_F(TwoNodes, TheEndOfNodeZerosLauncherEndsTheOther) {
  Launched one(node(1, "hang")), zero(node(0, "hang"));
  zero.wait_for("pid ", 2);
  one.wait_for("pid ", 2);
  kill(zero.pid(), SIGKILL);
  const Finished second = one.wait();
  EXPECT_EQ(second.exit_code, 5);
  EXPECT_THAT(second.last_line, HasSubstr("the launcher of node 0 at " + where_ + " is gone"));
  EXPECT_EQ(zero.wait().exit_code, 137);
}

TEST_F(TwoNodes, ANodeThatDoesNotComeIsNamed) {
  const Finished finished = launched(node(0, "done", {"--timeout", "1"}));
  EXPECT_EQ(finished.exit_code, 4);
  EXPECT_THAT(finished.last_line,
              HasSubstr("node 1 of 2 has not come to " + where_ + " after 1 s"));
  const Finished other = launched(node(1, "done", {"--timeout", "1"}));
  EXPECT_EQ(other.exit_code, 4);
  EXPECT_THAT(other.last_line, HasSubstr("no rendezvous at " + where_ + " after 1.0 s"));
}

TEST_F(TwoNodes, LaunchersThatDisagreeSaySo) {
  Launched one(node(1, "done", {"--version", "1.1"})), zero(node(0, "done"));
  for (const Finished& finished : {zero.wait(), one.wait()}) {
    EXPECT_EQ(finished.exit_code, 4);
    EXPECT_THAT(finished.last_line, HasSubstr("node 1 disagrees with node 0"));
    EXPECT_THAT(finished.last_line, HasSubstr("troika 1.1"));
  }
}

TEST_F(TwoNodes, ALauncherWaitsForTheStoreOfTheJobBeforeToGo) {
  {
    const Endpoint endpoint{"127.0.0.1", reserved_.port()};
    Store before = Store::host(endpoint.port, Reach::kThisHost);
    before.set("launchers/read/1", "");
    const Finished early = launched(node(1, "meet", {"--timeout", "1"}));
    EXPECT_EQ(early.exit_code, 4);
    EXPECT_THAT(early.last_line, HasSubstr("no rendezvous at " + where_ + " after 1.0 s"));
    EXPECT_THAT(early.last_line, HasSubstr("that of a job that node 1 has ended"));
  }
  // As often as it takes to come while a store is being closed.
  constexpr int kJobs = 3;
  for (int job = 0; job < kJobs; ++job) {
    auto before = std::make_unique<Store>(Store::host(reserved_.port(), Reach::kThisHost));
    before->set("launchers/read/1", "");
    Launched one(node(1, "meet"));
    before.reset();
    Launched zero(node(0, "meet"));
    const Finished first = zero.wait(), second = one.wait();
    EXPECT_EQ(first.exit_code, 0) << first.err;
    EXPECT_EQ(second.exit_code, 0) << second.err;
  }
}

TEST(Agent, APortInUseIsNamed) {
  const ListeningSocket taken = bind_port(0, Reach::kThisHost);
  const std::string port = std::to_string(taken.port);
  const Finished finished = launched({"done", "--ranks", "1", "--rendezvous", "127.0.0.1:" + port});
  EXPECT_EQ(finished.exit_code, 4);
  EXPECT_THAT(finished.last_line, HasSubstr("port " + port + " is in use"));
}

}  // namespace
}  // namespace troika::testing
