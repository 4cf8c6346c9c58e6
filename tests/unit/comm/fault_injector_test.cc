// An injected hang: what may be asked for, and that the process stops once.
#include <troika/comm/failure/fault_injector.h>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <troika/base/error.h>
#include <troika/observe/log.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Takes what is logged while it lives.
class Logged {
 public:
  Logged() {
    configure_log({.level = LogLevel::kWarning, .writer = [this](LogLevel, std::string_view text) {
                     lines_.emplace_back(text);
                   }});
  }
  ~Logged() { configure_log({.level = LogLevel::kOff}); }
  Logged(const Logged&) = delete;
  Logged& operator=(const Logged&) = delete;
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

std::string refusal(const std::string& text) {
  try {
    (void)FaultInjector::parse(text, 0, 4);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(FaultInjector, IsOfOneRank) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(FaultInjector::parse("2:loss*", rank, 4) != nullptr, rank == 2) << rank;
  }
}

TEST(FaultInjector, RefusesWhatNamesNoRankOrOperation) {
  for (const std::string text : {"loss*", ":loss*", "-1:loss*", "99999999999:loss*"}) {
    EXPECT_EQ(refusal(text), "TROIKA_STOP_AT=" + text + ": does not begin with a rank");
  }
  for (const std::string text : {"2", "2:", "2 loss*", "2.5:loss*"}) {
    EXPECT_EQ(refusal(text), "TROIKA_STOP_AT=" + text + ": names no operation");
  }
  EXPECT_EQ(refusal("4:loss*"), "TROIKA_STOP_AT=4:loss*: the ranks are 0 to 3");
}

TEST(FaultInjector, SaysThatItStoppedNowhere) {
  const Logged logged;
  {
    const auto fault_injector = FaultInjector::parse("0:gradient bucket ? on axis data", 0, 1);
    fault_injector->enter("gradient bucket 1", "data replica");
    fault_injector->enter("gradient bucket 10", "data");
    EXPECT_THAT(logged.lines(), IsEmpty());
  }
  EXPECT_THAT(logged.lines(),
              ElementsAre("TROIKA_STOP_AT: entered no operation 'gradient bucket ? on axis data'"));
}

TEST(FaultInjector, StopsTheProcessOnce) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Logged logged;
    {
      const auto fault_injector = FaultInjector::parse("0:gradient bucket *", 0, 1);
      fault_injector->enter("loss", "world");
      fault_injector->enter("gradient bucket 3", "data");
      fault_injector->enter("gradient bucket 4", "data");
    }
    const std::string said =
        "stops before 'gradient bucket 3' on axis data (TROIKA_STOP_AT); kill -CONT " +
        std::to_string(getpid()) + " continues it";
    _exit(testing::Value(logged.lines(), ElementsAre(said)) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(WSTOPSIG(status), SIGSTOP);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace troika
