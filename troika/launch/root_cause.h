// Finds the first cause among the many ends of a failed job, and puts it into words for the user.
#pragma once

#include <troika/launch/exit_report.h>
#include <troika/observe/saved_error.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The kinds of program that ranks are. Programs of troika's send their result or error through a
// Reporter; any other programs may.
enum class ReportPolicy { kExpected, kOptional };

// The end of one rank.
struct RankEnd {
  int rank = 0;
  int pid = 0;
  int status = 0;  // as waitpid gives it
  std::optional<ExitReport> report;
  bool was_ended_by_launcher = false;  // by the launcher, before its exit report or its end
  ReportPolicy report_policy = ReportPolicy::kExpected;
  bool has_printed = true;  // or may have, to a terminal
  // The rank's last operation, as its flight recorder says: "it last completed ..."; empty without
  // one.
  std::string last_operation = {};
  // The first error of its operations, if one failed. A program that need not report has then
  // ended as a consequence of it, whatever its exit status.
  std::optional<SavedError> error = {};
};

// The kinds of cause, from cause to consequence. A kind is reported only when nothing above it has
// happened.
enum class CauseKind {
  kInterrupted,  // the job was asked to end
  kDied,         // by a signal, or without an exit report
  kFailed,       // an error of its own
  kRendezvous,   // the ranks have not come together
  kLost,         // the launcher of another node does not answer
  kAfterwards,   // an error or a crash on the way out, after the launcher had told it to end
  kConsequence,  // a peer was gone or late
  kSecondHand,   // a peer had aborted, and said why
};

struct Cause {
  CauseKind kind = CauseKind::kDied;
  std::int64_t order = 0;  // among causes of a kind, the smallest is the first
  ExitCode code = ExitCode::kRankDied;
  std::string message;  // with rank and host
  std::string hint;
};

// Returns whether a rank ended with exit status 0, with a result where an exit report is expected,
// and without an error.
[[nodiscard]] bool ended_well(const RankEnd& end);

// Returns whether this end makes the job fail: by itself, not because the launcher told the rank to
// end.
[[nodiscard]] bool is_failure(const RankEnd& end);
// Returns whether a signal has ended the rank, as it was asked to.
[[nodiscard]] bool is_interruption(ExitCode code);

// Returns the notice that the others get of the first rank to fail: its name, the reason, and what
// it did last. The status need not be known of a rank that has reported its failure.
[[nodiscard]] Failure failure_notice(const RankEnd& end, std::string_view host);

// Returns the first cause among the ends of this node's ranks, which are in the order in which they
// happened; nothing when all went well. `world_size` is that of the job.
[[nodiscard]] std::optional<Cause> first_cause(const std::vector<RankEnd>& ends,
                                               std::string_view host, int world_size);

// Returns the first of several causes.
[[nodiscard]] const Cause& first_of(const std::vector<Cause>& causes);

// Returns whether the job may do better when it is started again: a rank, its device or its host
// has died, an object store could not be reached, or all that is known is that a peer was gone or
// late. Errors of a user or of data come again.
[[nodiscard]] bool may_not_recur(const Cause& cause);

// Encode a cause for the store, between nodes, and decode it. decode_cause throws DataError on
// anything else.
[[nodiscard]] std::string encode(const Cause& cause);
[[nodiscard]] Cause decode_cause(std::string_view text);

}  // namespace troika
