// A layer between a program and the system's calls on files. It counts the calls below one folder,
// phase by phase of a checkpoint, records what they do, and at a call that is chosen ends the
// process or fails. power_loss.h rebuilds from the record what a machine that lost its power would
// hold.
//
// It is a library of its own, which stands before the C library: a program links it first, or is
// started with it in LD_PRELOAD. It then takes its plan from the environment:
//   TROIKA_CHAOS_ROOT    the folder whose files count
//   TROIKA_CHAOS_REPORT  a file that gets a line for each call: RANK PHASE NUMBER KIND COUNT PATH
//   TROIKA_CHAOS_PLAN    "RANK PHASE NUMBER ACTION SHARE": what befalls that call of that rank,
//   once.
//                        ACTION is kill, kill-job, delete (its folder), or an error's number; 28+
//                        befalls all later calls on checkpoints as well, or on other files
//   TROIKA_CHAOS_DONE    a file that is made when the plan is carried out
#pragma once

#include <cstdint>

namespace troika::chaos {

// What a call belongs to: of files in a folder "checkpoints" a phase of a checkpoint, of all others
// kRun. While values are copied there are no calls: a program counts its own (count_copy()), and
// for a run it is where it looks for a request to take one.
enum class Phase : int { kCopy, kWrite, kFsync, kRename, kCommit, kCleanUp, kRead, kRun };
inline constexpr int kPhases = 8;
[[nodiscard]] const char* name_of(Phase phase);

enum class Kind : int {
  kMakeFolder,
  kCreate,
  kWrite,
  kSync,
  kSyncFolder,
  kSyncFailed,  // of a file: what was not synced is lost, and a later sync does not tell
  kClose,
  kRename,
  kRemove,
  kRemoveFolder,
  kOpen,  // to read
  kOther  // changes that power_loss.h does not know
};

enum class Action : int { kNone, kKill, kKillJob, kFail, kDelete };

// The call that something befalls.
struct Plan {
  Action action = Action::kNone;
  Phase phase = Phase::kCopy;
  int number = 0;    // of the phase's calls
  double share = 0;  // kKill: of a write, the bytes that are still written; of others, below a half
                     // it is before the call, else behind it
  int error = 0;     // kFail
  // kFail: these kinds of calls fail behind the chosen one, if both or neither are of kRun.
  unsigned kinds = 0;
  std::uint64_t longest_write = ~std::uint64_t{0};  // the most bytes that a write takes at once
};
[[nodiscard]] constexpr unsigned bit(Kind kind) {
  return 1U << static_cast<unsigned>(kind);
}

struct Operation {
  Kind kind;
  Phase phase;
  std::uint64_t file;  // its number (st_ino)
  std::uint64_t begin, count;
  char path[240], to[240];
};

// Lies in shared memory where the process that is watched is a child. No constructors: it is zeros.
struct Record {
  static constexpr int kMost = 1000;
  int counts[kPhases];  // of calls
  int operations_count;
  bool carried_out;  // what was planned
  Operation operations[kMost];
};

// Watches the calls below `root` from now on, of all threads. Files that are made get a second
// name, their number, in the folder `graves`, so that what is removed can come back. Null ends it.
void watch(Record* record, const Plan& plan, const char* root = "", const char* graves = "");

// Has every fsync of this process return at once: what a record says was synced need not be.
void skip_syncs();

// Counts a call of the phase kCopy.
void count_copy();

}  // namespace troika::chaos
