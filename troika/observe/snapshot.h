// What a rank is doing, as another process on its host sees it: its flight recorder, and whether
// the process runs, sleeps, is stopped or has ended. A rank that hangs cannot say so itself.
#pragma once

#include <troika/observe/recorder.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

enum class ProcessState { kUnknown, kRuns, kSleeps, kStopped, kEnded };

// Of the process on this host that has had the id since `started` (ns since 1970): one that began
// later has been given the id of one that has ended.
[[nodiscard]] ProcessState process_state(int pid, std::int64_t started);

struct RankSnapshot {
  Recording recording;
  ProcessState process = ProcessState::kUnknown;
  std::int64_t taken = 0;  // ns since 1970, on the rank's host

  // Whether the rank keeps a flight recorder; else only the state of its process is known.
  [[nodiscard]] bool recorded() const { return recording.created != 0; }
};

// Of the rank whose flight recorder is this file, written on this host. Nothing if it cannot be
// read.
[[nodiscard]] std::optional<RankSnapshot> take_snapshot(const std::filesystem::path& recorder);
// Of a rank of this host that keeps none.
[[nodiscard]] RankSnapshot look_at_process(int rank, int pid);

// For the store, where ranks of other hosts read it: with the operations that are running, and the
// last 64. decode_snapshot throws DataError on anything else.
[[nodiscard]] std::string encode(const RankSnapshot& snapshot);
[[nodiscard]] RankSnapshot decode_snapshot(std::string_view text);

// "it last completed all_reduce 'loss' 61 s ago", "it is in barrier 'end' (axis world) for 2.0 s",
// "it was in barrier 'end' (axis world) when it ended", "it has begun no operation", or "it keeps
// no flight recorder".
[[nodiscard]] std::string describe_last_operation(const RankSnapshot& snapshot);

}  // namespace troika
