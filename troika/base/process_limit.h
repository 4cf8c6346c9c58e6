// The limits on the processes and threads that may run at a time: pids.max of a control group, and
// RLIMIT_NPROC (`ulimit -u`).
#pragma once

#include <troika/base/error.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// The control group whose limit is the nearest.
struct ProcessLimit {
  std::uint64_t most = 0;
  std::uint64_t running = 0;
};

// Returns the limit of this process's control groups, as the files below `root` state it; nothing
// where they state none.
[[nodiscard]] std::optional<ProcessLimit> process_limit(const std::filesystem::path& root = "/");

// Says which limit there is, and how to raise it.
[[nodiscard]] std::string process_limit_hint(const std::filesystem::path& root = "/");

// Throws UsageError naming the limit where `error_number` says that `who` could not start a process
// or thread because of one (EAGAIN); does nothing for any other number.
void check_process_limit(int error_number, std::string_view who);

// Returns the message of that error.
[[nodiscard]] std::string too_many_processes(std::string_view who);

}  // namespace troika
