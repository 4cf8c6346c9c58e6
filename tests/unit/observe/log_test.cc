#include <fcntl.h>
#include <gmock/gmock.h>
#include <troika/base/file.h>
#include <troika/observe/log.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace troika {
namespace {

// The log goes to a pipe in this scope, and is silent again afterwards.
class CapturedLog {
 public:
  explicit CapturedLog(LogOptions options) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("pipe2");
    read_ = UniqueFd(ends[0]);
    write_ = UniqueFd(ends[1]);
    options.file_descriptor = write_.get();
    configure_log(options);
  }
  ~CapturedLog() { configure_log({.level = LogLevel::kOff}); }

  [[nodiscard]] std::string text() const {
    std::string text(65536, '\0');
    const ssize_t count = ::read(read_.get(), text.data(), text.size());
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, count)));
    return text;
  }

 private:
  UniqueFd read_, write_;
};

// This has to be the first test of the process: the others configure the log.
TEST(Log, TellsWarningsUntilConfigured) {
  testing::internal::CaptureStderr();
  log_info("no");
  log_warning("careful");
  log_error("broken");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: careful\nerror: broken\n");
}

TEST(Log, WritesFromItsLevelUp) {
  const CapturedLog log({.level = LogLevel::kInfo});
  log_debug("no");
  log_info("started");
  log_warning("careful {} %v %d");
  log_error("broken");
  EXPECT_EQ(log.text(), "started\nwarning: careful {} %v %d\nerror: broken\n");
}

TEST(Log, NamesTheRank) {
  const CapturedLog log({.level = LogLevel::kWarning, .rank = 12});
  log_info("no");
  log_warning("slow");
  EXPECT_EQ(log.text(), "[rank 12] warning: slow\n");
}

TEST(Log, TellsTheTimeWhenDebugging) {
  const CapturedLog log({.level = LogLevel::kDebug, .rank = 0});
  log_debug("joined");
  EXPECT_THAT(log.text(),
              testing::MatchesRegex("[0-9]+:[0-9]+:[0-9]+[.][0-9]+ .rank 0. debug: joined\n"));
}

TEST(Log, OffIsOff) {
  const CapturedLog log({.level = LogLevel::kOff});
  log_error("no");
  EXPECT_EQ(log.text(), "");
}

TEST(Log, LinesOfThreadsDoNotMix) {
  const CapturedLog log({});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 50; ++j) log_info("the same line");
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string expected;
  for (int i = 0; i < 200; ++i) expected += "the same line\n";
  EXPECT_EQ(log.text(), expected);
}

TEST(Log, GoesToTheWriterInstead) {
  std::vector<std::pair<LogLevel, std::string>> messages;
  configure_log(
      {.level = LogLevel::kDebug, .writer = [&](LogLevel level, std::string_view message) {
         messages.emplace_back(level, message);
       }});
  log_debug("a");
  log_warning("b");
  configure_log({.level = LogLevel::kOff});
  EXPECT_THAT(messages, testing::ElementsAre(testing::Pair(LogLevel::kDebug, "a"),
                                             testing::Pair(LogLevel::kWarning, "b")));
}

}  // namespace
}  // namespace troika
