#include <gtest/gtest.h>
#include <sys/wait.h>
#include <troika/base/process_stop.h>
#include <troika/base/time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>

namespace troika {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Stops a child, which `prepare` makes ready, for `stopped`, and returns its exit status.
int exit_status_of(const std::function<void()>& prepare, milliseconds stopped) {
  const pid_t child = fork();
  if (child == 0) {
    prepare();
    const Deadline deadline = Deadline::in(Seconds(stopped) / 2);
    const auto start = Clock::now();
    const auto steady_start = steady_clock::now();
    raise(SIGTSTP);
    const bool excluded = Clock::now() - start < stopped / 2 && !deadline.passed();
    const bool was_stopped = steady_clock::now() - steady_start >= stopped / 2;
    _exit((excluded ? 1 : 0) + (was_stopped ? 2 : 0));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  const auto until = steady_clock::now() + stopped;
  while (steady_clock::now() < until) {
  }
  kill(child, SIGCONT);
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Clock, StandsStillWhileTheProcessIsStoppedWithItsJob) {
  const auto own_group = [] { setpgid(0, 0); };  // which is not orphaned, as this process's may be
  constexpr milliseconds kStopped(400);
  EXPECT_EQ(exit_status_of(
                [&] {
                  own_group();
                  stop_clock_when_stopped();
                },
                kStopped),
            3);
  EXPECT_EQ(exit_status_of(own_group, kStopped), 2);
}

TEST(Clock, IsSteady) {
  auto before = Clock::now();
  for (int i = 0; i < 1000; ++i) {
    const auto now = Clock::now();
    EXPECT_GE(now, before);
    before = now;
  }
}

}  // namespace
}  // namespace troika
