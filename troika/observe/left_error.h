// The first error that ended an operation of a rank, in a file beside its flight recorder: the
// launcher reads it when the rank ends badly, and so names the rank that held the others up rather
// than the one that ended first.
#pragma once

#include <troika/base/error.h>

#include <filesystem>
#include <optional>
#include <string>

namespace troika {

struct LeftError {
  std::string message;  // one line
  std::string hint;     // one line, or empty
};

// <recorders>/error-rank-3.txt: the message, and a second line with the hint. Does nothing where
// `recorders` is empty or cannot be written: the error itself matters more.
void leave_error(const std::filesystem::path& recorders, int rank, const Error& error) noexcept;

// What `rank` has left there at or after `since`, if anything.
[[nodiscard]] std::optional<LeftError> left_error(const std::filesystem::path& recorders, int rank,
                                                  std::filesystem::file_time_type since);

}  // namespace troika
