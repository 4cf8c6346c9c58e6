// What is left of an exception once it has to be told: to the user, or to another process. The one
// form in which errors travel: in exit reports, through stores and shared memory, and beside flight
// recorders. And the one place that knows how the libraries below us word their errors.
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
  // A consequence of what happened to another rank: a peer that is gone, or late.
  bool secondary = false;
};

// Typed errors keep their code, message and hint; PeerError and DeadlineError are secondary. No
// memory left, be it std::bad_alloc or a tensor library's allocator, says how much was asked for
// where that is known. Anything else is an internal error, told by its first line.
[[nodiscard]] Failure failure_of(const std::exception& error);

// Returns the failure of an operation for the sake of another rank, as a PeerError has it.
[[nodiscard]] Failure peer_failure(std::string message, std::string hint = {});

// Throws the typed error of the failure's code; PeerError where it is secondary.
[[noreturn]] void throw_failure(const Failure& failure);

// A failure as one text, of three lines: the message, the hint, and the code, with the word
// "secondary" behind it where it is that. A line break within message or hint travels as a vertical
// tab.
[[nodiscard]] std::string encode(const Failure& failure);
// Also takes what people write, or what is left of a text that was cut: the message alone, or with
// a hint. That is a peer_failure(). An unknown code is kInternal.
[[nodiscard]] Failure decode_failure(std::string_view text);

}  // namespace troika
