#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <troika/base/file.h>
#include <troika/observe/progress.h>

#include <cmath>
#include <sstream>
#include <thread>

namespace troika {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// A clock that the test moves.
struct Stage {
  Clock::time_point time{};
  int columns = 120;
  std::ostringstream output;

  ProgressOptions options(ProgressStyle style) {
    ProgressOptions options;
    options.style = style;
    options.width = [this] { return columns; };
    options.now = [this] { return time; };
    return options;
  }
  void pass(double seconds) {
    time += std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
  }
  std::string take() {
    std::string text = output.str();
    output.str("");
    return text;
  }
};

StepMetrics metrics_of(std::int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 2.0;
  metrics.tokens_per_second = 52300;
  metrics.step_seconds = 1;
  return metrics;
}

TEST(StepProgress, ShowsTheMemoryOfADevice) {
  Stage stage;
  StepProgress progress(stage.output, 200, "tokens", stage.options(ProgressStyle::kTerminal));
  StepMetrics metrics = metrics_of(1);
  metrics.extras = {{"memory_bytes", 1e9}, {kDeviceReservedBytes, 9.5 * (1 << 30)}};
  progress.update(metrics);
  EXPECT_THAT(stage.take(), HasSubstr(" left  device 9.5 GiB"));
}

TEST(StepProgress, RedrawsOneLineOnATerminal) {
  Stage stage;
  StepProgress progress(stage.output, 200, "tokens", stage.options(ProgressStyle::kTerminal));
  progress.update(metrics_of(1));
  EXPECT_EQ(stage.take(), "\rstep 1/200  loss 2.0000  52.3 k tokens/s  3 min 19 s left\x1b[K");
  stage.pass(0.05);
  progress.update(metrics_of(2));
  EXPECT_EQ(stage.take(), "");  // too soon
  stage.pass(0.45);
  progress.update(metrics_of(3));  // half a second for two steps
  EXPECT_EQ(stage.take(), "\rstep 3/200  loss 2.0000  52.3 k tokens/s  49 s left\x1b[K");
  progress.update(metrics_of(4));
  progress.finish();
  EXPECT_EQ(stage.take(), "\rstep 4/200  loss 2.0000  52.3 k tokens/s  33 s left\x1b[K\n");
}

TEST(StepProgress, LeavesOutWhatDoesNotFit) {
  Stage stage;
  StepProgress progress(stage.output, 200, "tokens", stage.options(ProgressStyle::kTerminal));
  const auto drawn_at = [&](int columns) {
    stage.columns = columns;
    stage.pass(1);
    progress.update(metrics_of(1));
    return stage.take();
  };
  EXPECT_EQ(drawn_at(42), "\rstep 1/200  loss 2.0000  52.3 k tokens/s\x1b[K");
  EXPECT_EQ(drawn_at(41), "\rstep 1/200  loss 2.0000  52.3 k tokens/s\x1b[K");
  EXPECT_EQ(drawn_at(40), "\rstep 1/200  loss 2.0000\x1b[K");
  EXPECT_EQ(drawn_at(8), "\rstep 1/\x1b[K");
  EXPECT_EQ(drawn_at(0), "\rs\x1b[K");
}

TEST(StepProgress, PlainLinesNowAndThen) {
  Stage stage;
  StepProgress progress(stage.output, 100, "tokens", stage.options(ProgressStyle::kLines));
  for (int step = 1; step <= 100; ++step) {
    progress.update(metrics_of(step));
    stage.pass(0.3);
  }
  progress.finish();
  const std::string text = stage.take();
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);  // the first, two in 30 s, the last
  EXPECT_THAT(text, testing::StartsWith("step 1/100  loss"));
  EXPECT_THAT(text, HasSubstr("\nstep 35/100"));
  EXPECT_THAT(text, EndsWith("step 100/100  loss 2.0000  52.3 k tokens/s\n"));
}

TEST(StepProgress, TheLastLineIsWrittenOnce) {
  Stage stage;
  StepProgress progress(stage.output, 1, "tokens", stage.options(ProgressStyle::kLines));
  progress.update(metrics_of(1));
  progress.finish();
  progress.finish();
  EXPECT_EQ(stage.take(), "step 1/1  loss 2.0000  52.3 k tokens/s\n");
}

TEST(StepProgress, KeepsTheLastEvaluationOnDisplay) {
  Stage stage;
  StepProgress progress(stage.output, 9, "tokens", stage.options(ProgressStyle::kTerminal));
  StepMetrics metrics = metrics_of(1);
  metrics.evaluation = Evaluation{1.0, 2.125};
  progress.update(metrics);
  stage.take();
  stage.pass(1);
  metrics = metrics_of(2);
  metrics.loss = std::nan("");
  progress.update(metrics);
  EXPECT_EQ(
      stage.take(),
      "\rstep 2/9  loss not finite  52.3 k tokens/s  7 s left  held-out 2.125 bits/byte\x1b[K");
}

TEST(StepProgress, ClaimsNoTokensAndBytesWhereThereAreNone) {
  Stage stage;
  StepProgress progress(stage.output, 1, "samples", stage.options(ProgressStyle::kLines));
  StepMetrics metrics = metrics_of(1);
  metrics.evaluation = Evaluation{1.25};
  progress.update(metrics);
  EXPECT_EQ(stage.take(), "step 1/1  loss 2.0000  52.3 k samples/s  held-out loss 1.2500\n");
}

TEST(StepProgress, SaysNothingWhenSilent) {
  Stage stage;
  {
    StepProgress progress(stage.output, 2, "tokens", stage.options(ProgressStyle::kSilent));
    progress.update(metrics_of(1));
    stage.pass(100);
    progress.update(metrics_of(2));
    progress.finish();
  }
  EXPECT_EQ(stage.take(), "");
}

TEST(StepProgress, AnErrorStartsOnALineOfItsOwn) {
  Stage stage;
  {
    StepProgress progress(stage.output, 2, "tokens", stage.options(ProgressStyle::kTerminal));
    progress.update(metrics_of(1));
  }
  EXPECT_THAT(stage.take(), EndsWith("\x1b[K\n"));
}

TEST(CountProgress, DrawsABar) {
  Stage stage;
  CountProgress progress(stage.output, "tokenising", "documents", 1000,
                         stage.options(ProgressStyle::kTerminal));
  stage.pass(1);
  progress.add(250);
  EXPECT_EQ(stage.take(),
            "\rtokenising [======>                 ]  25 %  250/1.0 k documents  "
            "250 documents/s  3 s left\x1b[K");
  progress.add(750);
  progress.finish();
  EXPECT_EQ(stage.take(),
            "\rtokenising [========================] 100 %  1.0 k/1.0 k documents  "
            "1.0 k documents/s\x1b[K\n");
}

TEST(CountProgress, WithoutTotalJustCounts) {
  Stage stage;
  CountProgress progress(stage.output, "reading", "lines", 0, stage.options(ProgressStyle::kLines));
  stage.pass(2);
  progress.add(10);
  EXPECT_EQ(stage.take(), "reading  10 lines  5 lines/s\n");
  progress.finish();
  EXPECT_EQ(stage.take(), "");
}

TEST(CountProgress, CountsForAllThreads) {
  Stage stage;
  CountProgress progress(stage.output, "counting", "things", 4000,
                         stage.options(ProgressStyle::kLines));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&progress] {
      for (int j = 0; j < 1000; ++j) progress.add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  stage.pass(1);
  progress.finish();
  EXPECT_THAT(stage.take(), EndsWith("counting  4.0 k/4.0 k things  4.0 k things/s\n"));
}

TEST(ProgressStyle, KnowsATerminal) {
  const UniqueFd controller(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(controller.valid());
  ASSERT_EQ(::grantpt(controller.get()), 0);
  ASSERT_EQ(::unlockpt(controller.get()), 0);
  char name[128];
  ASSERT_EQ(::ptsname_r(controller.get(), name, sizeof(name)), 0);
  const UniqueFd terminal(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.valid());
  const winsize size{24, 57, 0, 0};
  ASSERT_EQ(::ioctl(terminal.get(), TIOCSWINSZ, &size), 0);

  const char* before = ::getenv("TERM");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("TERM", "xterm", 1);
  EXPECT_EQ(progress_style(terminal.get()), ProgressStyle::kTerminal);
  EXPECT_EQ(progress_options(terminal.get()).width(), 57);
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(progress_style(terminal.get()), ProgressStyle::kLines);
  ::setenv("TERM", "xterm", 1);
  const UniqueFd file(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(progress_style(file.get()), ProgressStyle::kLines);
  EXPECT_EQ(terminal_width(file.get()), 80);
  if (before != nullptr) {
    ::setenv("TERM", kept.c_str(), 1);
  } else {
    ::unsetenv("TERM");
  }
}

}  // namespace
}  // namespace troika
