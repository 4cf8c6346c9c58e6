#include <gtest/gtest.h>
#include <sys/socket.h>
#include <troika/base/file.h>
#include <troika/launch/exit_report.h>
#include <troika/launch/root_cause.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace troika {
namespace {

TEST(Report, ExitReportsTravel) {
  const ExitReport failed{Failure{ExitCode::kStorage, "disk \"x\" is\nfull", "\xff", true}, ""};
  const std::string line = encode(failed);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const ExitReport back = decode_exit_report(line);
  EXPECT_EQ(back.failure->code, ExitCode::kStorage);
  EXPECT_EQ(back.failure->message, failed.failure->message);
  EXPECT_TRUE(back.failure->secondary);
  EXPECT_EQ(decode_exit_report(encode({std::nullopt, "[1, 2]"})).result, "[1, 2]");
}

TEST(Report, WhatIsNoExitReportIsRefused) {
  for (const std::string& line :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
        std::string(R"({"error": 1})"), std::string(R"({"result": 1})"),
        std::string(R"({"error": "\n\n4"})")}) {
    EXPECT_THROW((void)decode_exit_report(line), DataError) << line;
  }
}

TEST(Report, WithoutALauncherItIsSilent) {
  Reporter reporter(Environment({{"TROIKA_REPORT_FD", "1"}}, {}));
  EXPECT_FALSE(reporter.connected());
  reporter.result("1");
  EXPECT_THROW(Reporter(Environment({}, {})).result("not json"), InternalError);
}

// A wrapper between the launcher and the rank may have other uses for the number.
TEST(Report, IsSentOnlyOnASocketThatTheLauncherHasMade) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd own(ends[0]), other(ends[1]);
  const auto descriptor = [](int launcher, int number) {
    return report_descriptor(Environment({{"TROIKA_LAUNCHER_PID", std::to_string(launcher)},
                                          {"TROIKA_REPORT_FD", std::to_string(number)}},
                                         {}));
  };
  EXPECT_EQ(descriptor(getpid(), own.get()), own.get());
  EXPECT_EQ(descriptor(getppid(), own.get()), -1);
  EXPECT_EQ(descriptor(getpid(), STDERR_FILENO), -1);
  EXPECT_EQ(descriptor(getpid(), 1 << 20), -1);
}

RankEnd ended(int rank, int status, std::optional<ExitReport> report = std::nullopt) {
  return {rank, 100 + rank, status, std::move(report), false};
}

TEST(RootCause, IsTheFirstOfTheGravestKind) {
  const ExitReport peer{Failure{ExitCode::kRendezvous, "gone", "", true}, ""};
  const ExitReport alone{Failure{ExitCode::kRendezvous, "nobody came", "", false}, ""};
  const ExitReport data{Failure{ExitCode::kData, "no data", "", false}, ""};
  const auto message = [](const std::vector<RankEnd>& ends) {
    return first_cause(ends, "a", 4)->message;
  };
  EXPECT_EQ(message({ended(0, 4 << 8, peer)}), "rank 0 (host a): gone");
  EXPECT_EQ(message({ended(0, 4 << 8, peer), ended(1, 4 << 8, alone)}),
            "rank 1 (host a): nobody came");
  EXPECT_EQ(message({ended(0, 4 << 8, alone), ended(1, 3 << 8, data), ended(2, 3 << 8, data)}),
            "rank 1 (host a): no data");
  EXPECT_EQ(message({ended(0, 3 << 8, data), ended(3, SIGKILL)}),
            "rank 3 (host a, pid 103) was killed by signal 9 (SIGKILL)");
  EXPECT_FALSE(first_cause({ended(0, 0, ExitReport{std::nullopt, "1"})}, "a", 1).has_value());
}

// Not of the rank that is the first to end by it, while the launcher already ends the others.
TEST(RootCause, ThatAllRanksHaveFoundTogetherIsOfNone) {
  const ExitReport loss{
      Failure{ExitCode::kNonFinite, "the loss is not finite at step 2 on rank 0, 1", "", false},
      ""};
  RankEnd slow = ended(0, SIGTERM);
  slow.was_ended_by_launcher = true;
  EXPECT_EQ(first_cause({ended(1, 6 << 8, loss), slow}, "a", 2)->message, loss.failure->message);
  // Rank 0 has been told so, and ends first.
  const ExitReport data{Failure{ExitCode::kData, "rank 2 on host b has other data", "", false}, ""};
  EXPECT_EQ(first_cause({ended(0, 3 << 8, data), slow}, "a", 3)->message, data.failure->message);
}

TEST(RootCause, OfAnyProgramIsItsExitStatus) {
  RankEnd end = ended(1, 0);
  EXPECT_TRUE(is_failure(end));  // the exit report is missing
  end.report_policy = ReportPolicy::kOptional;
  EXPECT_FALSE(is_failure(end));
  end.status = 3 << 8;
  EXPECT_EQ(first_cause({end}, "a", 2)->message,
            "rank 1 (host a, pid 101) ended with exit status 3");
  end.status = SIGKILL;
  EXPECT_EQ(first_cause({end}, "a", 2)->hint,
            "the kernel kills processes when memory runs out: `dmesg` tells");
  end.report = ExitReport{Failure{ExitCode::kData, "no data", "", false}, ""};
  end.status = 3 << 8;
  EXPECT_EQ(first_cause({end}, "a", 2)->code, ExitCode::kData);
}

TEST(RootCause, PointsAtWhatARankHasPrintedOnlyWhereItHasPrintedAnything) {
  RankEnd end = ended(1, SIGSEGV);
  EXPECT_NE(first_cause({end}, "a", 2)->hint.find("what the rank printed last"), std::string::npos);
  end.has_printed = false;
  EXPECT_NE(first_cause({end}, "a", 2)->hint.find("ulimit -c unlimited"), std::string::npos);
  end.status = 3 << 8;
  EXPECT_EQ(first_cause({end}, "a", 2)->hint, "");
}

TEST(RootCause, NamesTheLimitThatASignalStandsFor) {
  const Cause size = *first_cause({ended(1, SIGXFSZ)}, "a", 2);
  EXPECT_EQ(size.code, ExitCode::kStorage);
  EXPECT_NE(size.hint.find("ulimit -f"), std::string::npos);
  EXPECT_NE(first_cause({ended(1, SIGXCPU)}, "a", 2)->hint.find("ulimit -t"), std::string::npos);
}

// The first rank to exit is not the culprit.
TEST(RootCause, OfAnyProgramWhoseOperationHasFailedIsWhatThatSays) {
  RankEnd end = ended(2, 4 << 8);
  end.report_policy = ReportPolicy::kOptional;
  end.last_operation = "it last failed in barrier 'round' 3 ms ago";
  end.error = SavedError{
      peer_failure("rank 1 (host a, pid 101) has not entered barrier 'round'", "kill -CONT 101")};
  const Cause cause = *first_cause({end}, "a", 3);
  EXPECT_EQ(cause.kind, CauseKind::kConsequence);
  EXPECT_EQ(cause.code, ExitCode::kRankDied);
  EXPECT_EQ(cause.message,
            "rank 2 (host a, pid 102) ended with exit status 4 after: rank 1 (host a, pid 101) has "
            "not entered barrier 'round'");
  EXPECT_EQ(cause.hint, "kill -CONT 101");
  EXPECT_EQ(failure_notice(end, "a").message, cause.message);
  EXPECT_EQ(failure_notice(end, "a").hint, cause.hint);
  RankEnd culprit = ended(1, 1 << 8);
  culprit.report_policy = ReportPolicy::kOptional;
  culprit.last_operation = "it last completed all_reduce 'sum' 2.0 s ago";
  EXPECT_EQ(first_cause({end, culprit}, "a", 3)->message,
            "rank 1 (host a, pid 101) ended with exit status 1; it last completed all_reduce 'sum' "
            "2.0 s ago");
  end.status = SIGABRT;  // no handler has caught it
  end.was_ended_by_launcher = true;
  EXPECT_EQ(first_cause({end}, "a", 3)->kind, CauseKind::kConsequence);
  EXPECT_EQ(first_cause({end}, "a", 3)->message,
            "rank 2 (host a, pid 102) was killed by signal 6 (SIGABRT) after: rank 1 (host a, pid "
            "101) has not entered barrier 'round'");
  end.was_ended_by_launcher = false;
  end.status = SIGKILL;  // not by the error
  EXPECT_EQ(first_cause({end}, "a", 3)->kind, CauseKind::kDied);
}

TEST(RootCause, IsToldByWhoeverHasSeenItForItself) {
  const std::string seen = "rank 1 (host a, pid 101) has not entered barrier 'round'";
  RankEnd told = ended(2, 4 << 8), observer = ended(0, 4 << 8);
  told.report_policy = observer.report_policy = ReportPolicy::kOptional;
  observer.error = SavedError{peer_failure(seen, "kill -CONT 101")};
  for (const std::string quoting :
       {"barrier 'round' on axis world: rank 0 (host a, pid 100) gave up: ",
        "barrier 'round' on axis world: rank 0 (host a, pid 100) ended with exit status 4 "
        "after: "}) {
    told.error = SavedError{peer_failure(quoting + seen, "")};
    EXPECT_EQ(first_cause({told}, "a", 3)->kind, CauseKind::kSecondHand);
    const Cause cause = *first_cause({told, observer}, "a", 3);
    EXPECT_EQ(cause.message, "rank 0 (host a, pid 100) ended with exit status 4 after: " + seen);
    EXPECT_EQ(cause.hint, "kill -CONT 101");
  }
  EXPECT_EQ(decode_cause(encode(*first_cause({told}, "a", 3))).kind, CauseKind::kSecondHand);
  // As of a training.
  const auto spoken = [](int rank, const std::string& message) {
    return ended(rank, 4 << 8, ExitReport{Failure{ExitCode::kRendezvous, message, "", true}, ""});
  };
  EXPECT_EQ(first_cause({spoken(2, "rank 0 gave up: " + seen), spoken(0, seen)}, "a", 3)->message,
            "rank 0 (host a): " + seen);
}

// It has no last lines that say why.
TEST(RootCause, NamesTheRankThatHadGoneWellTooEarly) {
  RankEnd early = ended(1, 0), left = ended(0, 4 << 8);
  early.report_policy = left.report_policy = ReportPolicy::kOptional;
  left.error =
      SavedError{peer_failure("barrier 'round' on axis world: lost rank 1 (host a, pid 101)",
                              "that process has ended: its last lines say why")};
  const Cause cause = *first_cause({early, left}, "a", 2);
  EXPECT_EQ(cause.message,
            "rank 0 (host a, pid 100) ended with exit status 4 after: barrier 'round' on axis "
            "world: lost rank 1 (host a, pid 101); rank 1 had ended with exit status 0 before");
  EXPECT_EQ(cause.hint,
            "all ranks have to come to the same operations; uneven numbers of batches need join() "
            "(docs/own-module.md)");
  early.status = SIGKILL;
  early.was_ended_by_launcher = true;
  EXPECT_EQ(first_cause({early, left}, "a", 2)->hint, left.error->failure.hint);
}

TEST(RootCause, OthersAreToldOfIt) {
  const ExitReport data{Failure{ExitCode::kData, "no data", "get some", false}, ""};
  const ExitReport peer{Failure{ExitCode::kRendezvous, "rank 0 is late", "", true}, ""};
  const Failure failed = failure_notice(ended(1, 0, data), "a");
  EXPECT_EQ(failed.message, "rank 1 (host a, pid 101) has failed: no data");
  EXPECT_EQ(failed.hint, "get some");
  EXPECT_EQ(failed.code, ExitCode::kData);
  EXPECT_EQ(failure_notice(ended(1, 0, peer), "a").message,
            "rank 1 (host a, pid 101) gave up: rank 0 is late");
}

TEST(RootCause, WhatTheLauncherBroughtAboutIsNone) {
  RankEnd end = ended(0, SIGTERM);
  EXPECT_TRUE(is_failure(end));
  end.was_ended_by_launcher = true;
  EXPECT_FALSE(is_failure(end));
  end.status = SIGSEGV;
  EXPECT_TRUE(is_failure(end));
  end.status = 130 << 8;
  end.report = ExitReport{Failure{ExitCode::kInterrupted, "interrupted", "", false}, ""};
  EXPECT_FALSE(is_failure(end));
}

TEST(RootCause, TravelsBetweenNodes) {
  const Cause cause{CauseKind::kLost, 7, ExitCode::kRankDied, "node 1 \"x\"", "look there"};
  const Cause back = decode_cause(encode(cause));
  EXPECT_EQ(back.kind, cause.kind);
  EXPECT_EQ(back.order, 7);
  EXPECT_EQ(back.code, cause.code);
  EXPECT_EQ(back.message, cause.message);
  EXPECT_EQ(back.hint, cause.hint);
  for (const char* text : {"", "{}", "{\"kind\": 99, \"order\": 1, \"failure\": \"\"}"}) {
    EXPECT_THROW((void)decode_cause(text), DataError) << text;
  }
}

}  // namespace
}  // namespace troika
