#include <gtest/gtest.h>
#include <sys/socket.h>
#include <troika/base/file.h>
#include <troika/base/sigpipe_guard.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

namespace troika {
namespace {

// What a write to a connection whose other end is gone comes to.
int error_of_a_write() {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const UniqueFd own(ends[0]);
  close(ends[1]);
  return write(own.get(), "x", 1) < 0 ? errno : 0;
}

TEST(SigpipeGuard, InThisThreadAndInThoseThatItStarts) {
  {
    const SigpipeGuard guard;
    EXPECT_EQ(error_of_a_write(), EPIPE);
    std::thread other([] { EXPECT_EQ(error_of_a_write(), EPIPE); });
    other.join();
    const SigpipeGuard inside;
    EXPECT_EQ(error_of_a_write(), EPIPE);
  }
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGPIPE), 0);
}

TEST(SigpipeGuardDeathTest, LeavesTheProgramsOwnWritesAsTheyAre) {
  EXPECT_EXIT(
      {
        { const SigpipeGuard guard; }
        (void)error_of_a_write();
      },
      ::testing::KilledBySignal(SIGPIPE), "");
}

}  // namespace
}  // namespace troika
