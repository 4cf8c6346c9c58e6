// Notes the signals that ask a program to end, so that a run can end between two steps, with its
// model saved.
#pragma once

#include <csignal>
#include <exception>
#include <map>
#include <string>

namespace troika {

// While it lives, SIGINT, SIGTERM, SIGHUP and SIGUSR1 are noted instead of ending this process; one
// that was ignored before stays so (as under nohup). The same signal once more, a second later or
// more, ends it all the same. Sooner it counts as the one request that it mostly is
// (base/signal_requests.h), and another signal does not end it: Slurm sends SIGTERM at the end of
// the time behind the SIGUSR1 of --signal. At most one at a time.
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

// Returns the error of a run that a signal has ended, with a checkpoint: InterruptedError for
// SIGINT, else CheckpointedError. `where` says how far it has come: "after step 3 of 10".
[[nodiscard]] std::exception_ptr interruption_by(int signal, const std::string& where);

}  // namespace troika
