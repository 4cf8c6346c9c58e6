#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/base/time.h>
#include <troika/train/stop_signals.h>

#include <csignal>

namespace troika {
namespace {

void note_nothing(int) {}

TEST(StopSignals, NotesTheFirst) {
  const StopSignals signals;
  EXPECT_EQ(signals.received(), 0);
  std::raise(SIGTERM);
  std::raise(SIGINT);
  EXPECT_EQ(signals.received(), SIGTERM);
}

TEST(StopSignals, LeavesWhatWasThereAndWhatIsIgnored) {
  const auto before = std::signal(SIGTERM, note_nothing);
  const auto hang_up = std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_EQ(signals.received(), 0);
    EXPECT_THROW(StopSignals(), InternalError);
  }
  EXPECT_EQ(std::signal(SIGTERM, before), note_nothing);
  EXPECT_EQ(std::signal(SIGHUP, hang_up), SIG_IGN);
  EXPECT_EQ(StopSignals().received(), 0);
}

// As timeout(1) sends it, and a terminal beside a launcher.
TEST(StopSignals, CountsTheSameSignalWithinASecondOnce) {
  const StopSignals signals;
  for (const int number : {SIGTERM, SIGTERM, SIGTERM, SIGHUP, SIGHUP, SIGINT, SIGUSR1}) {
    std::raise(number);
  }
  EXPECT_EQ(signals.received(), SIGTERM);
}

TEST(StopSignals, TheSameSignalLaterEndsTheProcess) {
  const auto raise_for_long = [] {
    const StopSignals signals;
    for (const Deadline deadline = Deadline::in(Seconds(10)); !deadline.passed();) {
      std::raise(SIGINT);
    }
  };
  EXPECT_EXIT(raise_for_long(), testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace troika
