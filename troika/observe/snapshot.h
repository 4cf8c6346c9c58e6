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

// Returns the state of the process on this host that has had the id since `started` (ns since
// 1970). If a later process has been given the id, the one that had it has ended.
[[nodiscard]] ProcessState process_state(int pid, std::int64_t started);

struct RankSnapshot {
  Recording recording;
  ProcessState process = ProcessState::kUnknown;
  std::int64_t taken = 0;  // ns since 1970, on the rank's host

  // Returns whether the rank keeps a flight recorder. Without one, only the state of its process is
  // known.
  [[nodiscard]] bool recorded() const { return recording.created != 0; }
};

// Takes a snapshot of the rank whose flight recorder is this file, written on this host. Returns
// nothing if it cannot be read.
[[nodiscard]] std::optional<RankSnapshot> take_snapshot(const std::filesystem::path& recorder);
// Takes a snapshot of a rank of this host that keeps no flight recorder.
[[nodiscard]] RankSnapshot look_at_process(int rank, int pid);

// Encode a snapshot for the store, where ranks of other hosts read it, and decode it. The text
// holds the operations that are running, and the last 64. decode_snapshot throws DataError on
// anything else.
[[nodiscard]] std::string encode(const RankSnapshot& snapshot);
[[nodiscard]] RankSnapshot decode_snapshot(std::string_view text);

// Returns "it last completed all_reduce 'loss' 61 s ago", "it is in barrier 'end' (axis world) for
// 2.0 s", "it was in barrier 'end' (axis world) when it ended", "it has begun no operation", or "it
// keeps no flight recorder".
[[nodiscard]] std::string describe_last_operation(const RankSnapshot& snapshot);

}  // namespace troika
