// The typed errors of the library. Nothing in troika prints, exits or aborts: it throws one of
// these, and the command turns it into one line, a hint and the documented exit code.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace troika {

// The kind of an error, as the exit code of the command that met it. docs/errors.md lists them for
// users.
enum class ExitCode : int {
  kDone = 0,
  kInternal = 1,       // a bug in troika
  kUsage = 2,          // a flag or the recipe
  kData = 3,           // missing, empty, unreadable or corrupt data or model file
  kRendezvous = 4,     // ranks that do not come, do not agree, or pass a deadline
  kRankDied = 5,       // a rank ended by a signal or without an exit report
  kNonFinite = 6,      // the loss or a gradient is not finite
  kStorage = 7,        // a full disk, a folder that cannot be written
  kCheckpointed = 75,  // by a signal; the same command goes on
  kInterrupted = 130,
};

// The root of all errors. `what()` is one line that names the culprit (file, line, key, rank,
// label); `hint()` is one line that says what to do, or empty.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, std::string hint = {})
      : std::runtime_error(message), code_(code), hint_(std::move(hint)) {}

  [[nodiscard]] ExitCode code() const { return code_; }
  [[nodiscard]] const std::string& hint() const { return hint_; }

 private:
  ExitCode code_;
  std::string hint_;
};

// A class for each code, so that callers can catch what they can handle.
template <ExitCode kCode>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& message, std::string hint = {})
      : Error(kCode, message, std::move(hint)) {}
};

using InternalError = ErrorOf<ExitCode::kInternal>;
using UsageError = ErrorOf<ExitCode::kUsage>;
using DataError = ErrorOf<ExitCode::kData>;
using RendezvousError = ErrorOf<ExitCode::kRendezvous>;
using RankDiedError = ErrorOf<ExitCode::kRankDied>;
using NonFiniteError = ErrorOf<ExitCode::kNonFinite>;
using StorageError = ErrorOf<ExitCode::kStorage>;
// A signal other than Ctrl-C has asked a run to end, and it has taken a checkpoint: the same
// command goes on from there.
using CheckpointedError = ErrorOf<ExitCode::kCheckpointed>;

// A signal has asked the process to end. Its exit status then is 128 and the signal's number, as
// shells count, and 130 where no signal is known.
class InterruptedError : public ErrorOf<ExitCode::kInterrupted> {
 public:
  explicit InterruptedError(const std::string& message, std::string hint = {}, int signal = 2)
      : ErrorOf(message, std::move(hint)), signal_(signal) {}

  [[nodiscard]] int exit_status() const { return 128 + signal_; }

 private:
  int signal_;
};

// A collective that did not finish in time. The message names operation, label, the time waited
// and, where it is known, the rank that is missing.
class DeadlineError : public RendezvousError {
  using RendezvousError::RendezvousError;
};

// A peer is gone, or the group was aborted, while a collective was under way.
class PeerError : public RendezvousError {
  using RendezvousError::RendezvousError;
};

// Throws InternalError naming `what` unless `condition` holds: for invariants, not for user input.
inline void check(bool condition, std::string_view what) {
  if (!condition) throw InternalError("internal error: " + std::string(what));
}

}  // namespace troika
