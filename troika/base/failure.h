// What is left of an exception once it has to be told: to the user, or to another process. The one
// place that knows how the libraries below us word their errors.
#pragma once

#include <troika/base/error.h>

#include <exception>
#include <string>

namespace troika {

// An error as it travels between processes, and as the user reads it.
struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string message;  // one line
  std::string hint;     // one line, or empty
  // A consequence of what happened to another rank: a peer that is gone, or late.
  bool secondary = false;
};

// Typed errors keep their code, message and hint; PeerError and DeadlineError are secondary. No
// memory left, be it std::bad_alloc or a tensor library's allocator, says how much was asked for
// where that is known. Anything else is an internal error, told by its first line.
[[nodiscard]] Failure failure_of(const std::exception& error);

}  // namespace troika
