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

// <recorders>/error-rank-3.txt: the error as encode(Failure) writes it. Does nothing where
// `recorders` is empty or cannot be written: the error itself matters more. One thread at a time.
void save_error(const std::filesystem::path& recorders, int rank, const Error& error) noexcept;

// What `rank` has left there, if anything.
[[nodiscard]] std::optional<SavedError> read_saved_error(const std::filesystem::path& recorders,
                                                         int rank);

// What an earlier job has left there is gone.
void remove_saved_error(const std::filesystem::path& recorders, int rank) noexcept;

}  // namespace troika
