#include <troika/base/error.h>
#include <troika/base/signal_requests.h>
#include <troika/train/stop_signals.h>

#include <array>
#include <atomic>
#include <cstring>

namespace troika {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// A signal handler can reach nothing but static storage.
std::atomic<bool> in_use = false;
std::atomic<int> first_signal = 0;
std::array<SignalRequests, kSignals.size()> requests;
std::array<std::atomic<int>, kSignals.size()> requested;  // how often, by signal

void note_signal(int number) {
  int none = 0;
  first_signal.compare_exchange_strong(none, number);
  std::size_t i = 0;
  while (kSignals[i] != number) ++i;
  if (!requests[i].is_new(number)) return;
  if (++requested[i] == 1) return;
  std::signal(number, SIG_DFL);
  std::raise(number);  // takes effect when the handler returns
}

}  // namespace

StopSignals::StopSignals() {
  check(!in_use.exchange(true), "signals are noted once at a time");
  first_signal = 0;
  for (SignalRequests& each : requests) each.forget();
  for (std::atomic<int>& each : requested) each = 0;
  for (const int number : kSignals) {
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

std::exception_ptr interruption_by(int signal, const std::string& where) {
  const bool is_ctrl_c = signal == SIGINT;
  const std::string how = is_ctrl_c ? "" : " by SIG" + std::string(sigabbrev_np(signal));
  const std::string what = "interrupted" + how + " " + where;
  const std::string hint = "the same command goes on from there";
  if (is_ctrl_c) return std::make_exception_ptr(InterruptedError(what, hint, signal));
  return std::make_exception_ptr(CheckpointedError(what, hint));
}

}  // namespace troika
