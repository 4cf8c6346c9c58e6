#include <troika/base/error.h>
#include <troika/launch/signals.h>
#include <troika/observe/progress.h>

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

namespace troika {
namespace {

// A signal handler can reach nothing but static storage.
std::atomic<int> handler_pipe = -1;

void write_to_pipe(int number) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(number);
  (void)!write(handler_pipe.load(), &byte, 1);
  errno = saved;
}

// What end_by_signal() prints in front, for the same reason in static storage.
std::string_view before_last_line;

void end_by_signal(int number) {
  const char* name = number == SIGINT ? "" : number == SIGTERM ? " by SIGTERM" : " by SIGHUP";
  for (const std::string_view text : {before_last_line, std::string_view("troika: interrupted"),
                                      std::string_view(name), std::string_view("\n")}) {
    (void)!write(STDERR_FILENO, text.data(), text.size());
  }
  constexpr int kKilled = 128;
  _exit(kKilled + number);
}

}  // namespace

void end_on_signals_as_process_one() {
  if (getpid() != 1) return;
  if (progress_style(STDERR_FILENO) == ProgressStyle::kTerminal) before_last_line = "\r\x1b[K";
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_DFL) continue;
    action.sa_handler = end_by_signal;
    sigfillset(&action.sa_mask);
    sigaction(number, &action, nullptr);
  }
}

SignalPipe::SignalPipe(bool takes_signals) {
  int ends[2];
  check(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe for signals");
  reading_ = UniqueFd(ends[0]);
  writing_ = UniqueFd(ends[1]);
  int none = -1;
  check(handler_pipe.compare_exchange_strong(none, ends[1]), "two signal pipes at a time");
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGPIPE}) {
    if (!takes_signals && number != SIGPIPE) continue;
    struct sigaction action {};
    action.sa_handler = number == SIGPIPE ? SIG_IGN : write_to_pipe;
    action.sa_flags = SA_RESTART;
    sigfillset(&action.sa_mask);
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
    before_.emplace(number, before);
  }
}

SignalPipe::~SignalPipe() {
  for (const auto& [number, action] : before_) sigaction(number, &action, nullptr);
  handler_pipe = -1;
}

std::optional<int> SignalPipe::take() const {
  unsigned char number = 0;
  if (read(reading_.get(), &number, 1) != 1) return std::nullopt;
  return number;
}

}  // namespace troika
