#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <troika/base/error.h>
#include <troika/comm/failure/snapshot_collector.h>
#include <troika/observe/saved_error.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>

#include "support/temporary_folder.h"

namespace troika {
namespace {

TEST(SnapshotCollector, LooksAtTheProcessOfARankWithoutARecorder) {
  const int stopped = fork();
  if (stopped == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  ASSERT_GT(stopped, 0);
  int status = 0;
  ASSERT_EQ(waitpid(stopped, &status, WUNTRACED), stopped);
  ASSERT_TRUE(WIFSTOPPED(status));
  const Members members{.axis = "data",
                        .ranks = {0, 3, 5},
                        .hosts = {"a", "a", "b"},
                        .identities = {"a", "a", "b"},
                        .pids = {getpid(), stopped, stopped}};
  const auto snapshots = SnapshotCollector(std::nullopt).collect(members, Seconds(0));
  kill(stopped, SIGKILL);
  waitpid(stopped, &status, 0);
  ASSERT_EQ(snapshots.size(), 3u);
  ASSERT_TRUE(snapshots[0] && snapshots[1]);
  EXPECT_EQ(snapshots[0]->process, ProcessState::kRuns);
  EXPECT_EQ(snapshots[1]->process, ProcessState::kStopped);
  EXPECT_EQ(snapshots[1]->recording.rank, 3);
  EXPECT_EQ(snapshots[1]->recording.process_id, stopped);
  EXPECT_FALSE(snapshots[1]->recorded());
  EXPECT_FALSE(snapshots[2]);  // no process tells of another host
}

TEST(SnapshotCollector, KnowsWhyAMemberOfThisHostHasJustFailed) {
  const TemporaryFolder folder;
  Members members{.axis = "data",
                  .ranks = {0, 3, 5},
                  .hosts = {"a", "a", "b"},
                  .identities = {"a", "a", "b"},
                  .recorders = folder.path()};
  EXPECT_FALSE(saved_reason(members, 1, Seconds(60)));  // it has not
  for (const int rank : {3, 5}) {
    save_error(folder.path(), rank, DeadlineError("rank 2 has not entered", "kill -CONT 2"));
  }
  const auto reason = saved_reason(members, 1, Seconds(60));
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->message, "rank 2 has not entered");
  EXPECT_EQ(reason->hint, "kill -CONT 2");
  EXPECT_FALSE(saved_reason(members, 2, Seconds(60)));  // of another host, by another job
  using std::filesystem::last_write_time;
  const auto file = folder.path() / "error-rank-3.txt";
  last_write_time(file, last_write_time(file) - std::chrono::minutes(2));
  EXPECT_FALSE(saved_reason(members, 1, Seconds(60)));  // that was of something else
  members.recorders.clear();
  EXPECT_FALSE(saved_reason(members, 1, Seconds(1000)));
}

}  // namespace
}  // namespace troika
