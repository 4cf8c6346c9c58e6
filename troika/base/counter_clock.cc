#include <troika/base/counter_clock.h>
#include <troika/base/time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>

#include <cmath>
#endif

namespace troika {

#if defined(__x86_64__)
namespace {

// ns for which a reading of the clock serves, and over which the counter's rate is measured.
constexpr std::int64_t kServes = 1'000'000, kToMeasure = 10'000'000;
// A reading takes some 100; one that took more was interrupted.
constexpr std::uint64_t kMostTicks = 2000;
constexpr int kFractionBits = 32;

// Whether the counter's rate is the same at any frequency, and while the processor sleeps.
bool counts_time() {
  constexpr unsigned kPowerManagement = 0x80000007, kInvariant = 1U << 8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(kPowerManagement, &a, &b, &c, &d) != 0 && (d & kInvariant) != 0;
}

// Each thread's own, so that nobody waits for another.
class CounterClock {
 public:
  std::int64_t now() {
    const std::uint64_t passed = __rdtsc() - ticks_;
    if (passed < serves_) {
      return wall_ + static_cast<std::int64_t>((passed * nanoseconds_per_tick_) >> kFractionBits);
    }
    return read();
  }

 private:
  std::int64_t read() {
    static const bool counts = counts_time();
    const std::uint64_t before = __rdtsc();
    wall_ = wall_nanoseconds();
    if (!counts) return wall_;
    ticks_ = __rdtsc();
    serves_ = 0;
    // Not the wall clock, which may be set meanwhile.
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const std::int64_t steady = std::chrono::nanoseconds(now).count();
    if (__rdtsc() - before > kMostTicks) return wall_;
    const std::int64_t passed = steady - since_;
    const std::uint64_t ticks = ticks_ - ticks_since_;
    if (since_ == 0 || passed >= kToMeasure) {
      if (since_ > 0 && ticks > 0) {
        const double each = static_cast<double>(passed) / static_cast<double>(ticks);
        nanoseconds_per_tick_ = static_cast<std::uint64_t>(std::ldexp(each, kFractionBits));
        span_ = static_cast<std::uint64_t>(kServes / each);
      }
      since_ = steady;
      ticks_since_ = ticks_;
    }
    serves_ = span_;
    return wall_;
  }

  // The last reading, and for how many ticks it serves: none before the rate is known.
  std::int64_t wall_ = 0;
  std::uint64_t ticks_ = 0, serves_ = 0;
  // The counter's rate (times 2^kFractionBits), as it was when it was last measured, and kServes in
  // ticks.
  std::uint64_t nanoseconds_per_tick_ = 0, span_ = 0;
  // From where it is measured next.
  std::int64_t since_ = 0;
  std::uint64_t ticks_since_ = 0;
};

constinit thread_local CounterClock clock_of_thread;

}  // namespace

std::int64_t wall_nanoseconds_by_counter() noexcept {
  return clock_of_thread.now();
}
#else
std::int64_t wall_nanoseconds_by_counter() noexcept {
  return wall_nanoseconds();
}
#endif

}  // namespace troika
