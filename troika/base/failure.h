// An exception on its way to the user or to another process, as a Failure. Errors travel in this
// form alone: in exit reports, through stores and shared memory, and beside flight recorders. This
// is also the one place that knows how the libraries below us word their errors.
#pragma once

#include <troika/base/error.h>

#include <exception>
#include <string>
#include <string_view>

namespace troika {

// An error as it travels between processes, and as the user reads it.
struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string message;  // one line
  std::string hint;     // one line, or empty
  // Set for a consequence of what happened to another rank: a peer that is gone, or late.
  bool secondary = false;
};

// Returns the failure that describes an error. Typed errors keep their code, message and hint;
// PeerError and DeadlineError are secondary. An error for want of memory, be it std::bad_alloc or a
// tensor library's, says how much was asked for where that is known. Any other error is an internal
// error, described by its first line.
[[nodiscard]] Failure failure_of(const std::exception& error);

// Returns a secondary failure: that of an operation because of another rank, as a PeerError has it.
[[nodiscard]] Failure peer_failure(std::string message, std::string hint = {});

// Throws the typed error of the failure's code; PeerError where it is secondary.
[[noreturn]] void throw_failure(const Failure& failure);

// Encodes a failure as a text of three lines: the message, the hint, and the code. The word
// "secondary" follows the code of a secondary failure. A line break within message or hint travels
// as a vertical tab.
[[nodiscard]] std::string encode(const Failure& failure);
// Decodes such a text. A text that people wrote, or one that was cut, may be the message alone, or
// with a hint: it is decoded as a peer_failure(). An unknown code is decoded as kInternal.
[[nodiscard]] Failure decode_failure(std::string_view text);

}  // namespace troika
