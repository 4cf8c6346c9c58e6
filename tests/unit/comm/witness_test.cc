#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <troika/comm/witness.h>
#include <unistd.h>

namespace troika {
namespace {

TEST(Witness, LooksAtTheProcessOfARankWithoutARecorder) {
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
  const auto snapshots = Witness(std::nullopt).look(members, Seconds(0));
  kill(stopped, SIGKILL);
  waitpid(stopped, &status, 0);
  ASSERT_EQ(snapshots.size(), 3u);
  ASSERT_TRUE(snapshots[0] && snapshots[1]);
  EXPECT_EQ(snapshots[0]->process, ProcessState::kRuns);
  EXPECT_EQ(snapshots[1]->process, ProcessState::kStopped);
  EXPECT_EQ(snapshots[1]->recording.rank, 3);
  EXPECT_EQ(snapshots[1]->recording.process_id, stopped);
  EXPECT_FALSE(snapshots[1]->recorded());
  EXPECT_FALSE(snapshots[2]);  // of another host nobody says anything
}

}  // namespace
}  // namespace troika
