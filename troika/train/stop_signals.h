// Notes the signals that ask a program to end, so that a run can end between two steps, with its
// model saved.
#pragma once

#include <csignal>
#include <map>

namespace troika {

// While it lives, SIGINT, SIGTERM, SIGHUP and SIGUSR1 are noted instead of ending this process; one
// that was ignored before stays so (as under nohup). The third one ends it all the same: a rank may
// get two of one Ctrl-C, from the terminal and from its launcher. At most one at a time.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  // Returns the first signal that has come, or 0.
  [[nodiscard]] int received() const;

 private:
  std::map<int, struct sigaction> before_;
};

}  // namespace troika
