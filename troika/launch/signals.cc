#include <troika/base/error.h>
#include <troika/launch/signals.h>

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

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

}  // namespace

SignalPipe::SignalPipe() {
  int ends[2];
  check(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe for signals");
  reading_ = UniqueFd(ends[0]);
  writing_ = UniqueFd(ends[1]);
  int none = -1;
  check(handler_pipe.compare_exchange_strong(none, ends[1]), "two signal pipes at a time");
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
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
