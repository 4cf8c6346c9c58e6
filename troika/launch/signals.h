// Turns the signals that ask a program to end or to stop into bytes on a pipe, for an event loop.
#pragma once

#include <troika/base/file.h>

#include <csignal>
#include <map>
#include <optional>

namespace troika {

// While it lives, SIGINT, SIGTERM and SIGHUP no longer end this process, SIGTSTP no longer stops
// it, and SIGPIPE is ignored. A signal that was ignored before stays so (as under nohup). At most
// one at a time. One that does not take signals leaves all but SIGPIPE as it was.
class SignalPipe {
 public:
  explicit SignalPipe(bool takes_signals = true);
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;
  ~SignalPipe();

  // Returns a descriptor that is readable when a signal has come.
  [[nodiscard]] int descriptor() const { return reading_.get(); }
  // Returns the next signal that has come, if any.
  [[nodiscard]] std::optional<int> take() const;

 private:
  UniqueFd reading_, writing_;
  std::map<int, struct sigaction> before_;
};

// Makes SIGINT, SIGTERM and SIGHUP end this process where it is process 1, as in a container. The
// kernel does not apply their default action to process 1. The process prints "troika: interrupted
// by SIGTERM" and exits with 128 and the signal's number, as the launcher does. Does nothing in any
// other process, nor for a signal that is ignored or handled already. Call it in main(), before
// threads start.
void end_on_signals_as_process_one();

}  // namespace troika
