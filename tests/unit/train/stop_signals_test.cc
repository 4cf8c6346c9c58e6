#include <gtest/gtest.h>
#include <troika/base/error.h>
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

TEST(StopSignals, TheThirdEndsTheProcess) {
  const auto raise_three = [] {
    const StopSignals signals;
    for (int i = 0; i < 3; ++i) std::raise(SIGINT);
  };
  EXPECT_EXIT(raise_three(), testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace troika
