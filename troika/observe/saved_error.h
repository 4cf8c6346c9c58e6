// The first error that ended an operation of a rank, in a file beside its flight recorder: the
// launcher reads it when the rank ends badly, and so names the rank that held the others up rather
// than the one that ended first.
#pragma once

#include <troika/base/failure.h>
#include <troika/base/time.h>

#include <filesystem>
#include <optional>
#include <string>

namespace troika {

struct SavedError {
  Failure failure;
  Seconds age{0};  // since it was left
};

// Writes the error to <recorders>/error-rank-3.txt, as encode(Failure) gives it. Does nothing where
// `recorders` is empty or cannot be written: the error itself matters more. Call it from one thread
// at a time.
void save_error(const std::filesystem::path& recorders, int rank, const Error& error) noexcept;

// Returns the error that `rank` has left there, if any.
[[nodiscard]] std::optional<SavedError> read_saved_error(const std::filesystem::path& recorders,
                                                         int rank);

// Removes what an earlier job has left there.
void remove_saved_error(const std::filesystem::path& recorders, int rank) noexcept;

}  // namespace troika
