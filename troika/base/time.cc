#include <troika/base/process_stop.h>
#include <troika/base/time.h>

#include <atomic>
#include <cerrno>
#include <csignal>

namespace troika {
namespace {

// A signal handler can reach nothing but static storage. In ns of the steady clock.
constinit std::atomic<std::int64_t> stopped_since = 0;  // 0: it is not stopped
constinit std::atomic<std::int64_t> stopped_time = 0;   // in total, before that

std::int64_t steady_nanoseconds() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Everything stands still between the two stores. When the process goes on, another thread may read
// the clock before the second of them: until then the clock shows when the process was stopped.
template <class Stop>
void stop_clock_during(const Stop& stop) {
  const std::int64_t start = steady_nanoseconds();
  stopped_since = start;
  stop();
  stopped_time += steady_nanoseconds() - start;
  stopped_since = 0;
}

void stop_with_job(int) {
  const int saved = errno;
  // To this very thread: one that it sends to the process might stop it a moment later.
  stop_clock_during([] { (void)raise(SIGSTOP); });
  errno = saved;
}

}  // namespace

Clock::time_point Clock::now() noexcept {
  for (;;) {
    const std::int64_t since = stopped_since, before = stopped_time;
    const std::int64_t now = since != 0 ? since : steady_nanoseconds();
    // Else the process was stopped, or has gone on, between these readings.
    if (stopped_since == since && stopped_time == before) {
      return time_point(std::chrono::nanoseconds(now - before));
    }
  }
}

void stop_process() {
  // The default action, which does nothing where no shell would let the process go on.
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  struct sigaction before {};
  sigaction(SIGTSTP, &usual, &before);
  stop_clock_during([] { (void)raise(SIGTSTP); });
  sigaction(SIGTSTP, &before, nullptr);
}

void stop_clock_when_stopped() {
  struct sigaction action {};
  sigaction(SIGTSTP, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;
  action.sa_handler = stop_with_job;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(SIGTSTP, &action, nullptr);
}

}  // namespace troika
