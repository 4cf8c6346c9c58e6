// Turns the signals that ask a program to end into bytes on a pipe, for an event loop.
#pragma once

#include <troika/base/file.h>

#include <csignal>
#include <map>
#include <optional>

namespace troika {

// While it lives, SIGINT, SIGTERM and SIGHUP no longer end this process, and SIGPIPE is ignored.
// A signal that was ignored before stays so (as under nohup). At most one at a time.
class SignalPipe {
 public:
  SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;
  ~SignalPipe();

  // Readable when a signal has come.
  [[nodiscard]] int descriptor() const { return reading_.get(); }
  // The next signal that has come.
  [[nodiscard]] std::optional<int> take() const;

 private:
  UniqueFd reading_, writing_;
  std::map<int, struct sigaction> before_;
};

}  // namespace troika
