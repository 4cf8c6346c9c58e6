#include <gtest/gtest.h>
#include <troika/base/counter_clock.h>
#include <troika/base/time.h>

#include <thread>

namespace troika {
namespace {

constexpr std::int64_t kOff = 5'000;  // ns: the clock itself is being corrected

// Long enough for the counter's rate to be measured, and for many readings of the clock to run out.
void compare_for(Seconds time) {
  const Deadline enough = Deadline::in(time);
  while (!enough.passed()) {
    const std::int64_t before = wall_nanoseconds();
    const std::int64_t told = wall_nanoseconds_by_counter();
    const std::int64_t after = wall_nanoseconds();
    ASSERT_GE(told, before - kOff);
    ASSERT_LE(told, after + kOff);
  }
}

TEST(CounterClock, TellsTheTimeOfTheWallClock) {
  compare_for(Seconds(0.1));
}

TEST(CounterClock, TellsItAfterALongRest) {
  compare_for(Seconds(0.02));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // what is tested: no readings
  compare_for(Seconds(0.02));
}

TEST(CounterClock, TellsItInEveryThread) {
  std::thread other([] { compare_for(Seconds(0.05)); });
  compare_for(Seconds(0.05));
  other.join();
}

}  // namespace
}  // namespace troika
