#include <troika/base/error.h>
#include <troika/train/stop_signals.h>

#include <atomic>

namespace troika {
namespace {

constexpr int kMostNoted = 2;

// A signal handler can reach nothing but static storage.
std::atomic<bool> in_use = false;
std::atomic<int> first_signal = 0;
std::atomic<int> signals = 0;

void note_signal(int number) {
  int none = 0;
  first_signal.compare_exchange_strong(none, number);
  if (++signals <= kMostNoted) return;
  std::signal(number, SIG_DFL);
  std::raise(number);  // takes effect when the handler returns
}

}  // namespace

StopSignals::StopSignals() {
  check(!in_use.exchange(true), "signals are noted once at a time");
  first_signal = 0;
  signals = 0;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    sigfillset(&action.sa_mask);
    sigaction(number, &action, nullptr);
    before_.emplace(number, before);
  }
}

StopSignals::~StopSignals() {
  for (const auto& [number, action] : before_) sigaction(number, &action, nullptr);
  in_use = false;
}

int StopSignals::received() const {
  return first_signal.load();
}

}  // namespace troika
