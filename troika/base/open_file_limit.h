// The limit on the files that a process may have open at a time (RLIMIT_NOFILE, `ulimit -n`).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troika {

// Makes sure that this process can open files for `who` ("the launcher of 8 ranks"): raises its
// limit, and that of the processes it starts, until it can open `wanted` more, or as far as the
// hard limit lets. Throws UsageError "too many open files: ..." where it cannot open `needed` more
// even so. Both numbers are estimates: `needed` low, `wanted` high. Thread-safe.
void reserve_open_files(std::uint64_t needed, std::uint64_t wanted, std::string_view who);

// Throws the same UsageError where `error_number` says that `who` could not open a file because of
// the limit (EMFILE, ENFILE); does nothing for any other number.
void check_open_files(int error_number, std::string_view who);

// Says how to raise the limit, with its value.
[[nodiscard]] std::string open_file_hint();

}  // namespace troika
