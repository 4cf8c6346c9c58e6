// Finds the member that holds an operation up, and the operation that it is in, from the flight
// recorders of all members. Pure text from facts: engines ask it when a deadline has passed, or
// when members turn out to be in different operations.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/members.h>
#include <troika/observe/snapshot.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika {

// Hints of errors that several engines give.
inline constexpr const char* kSameOperations =
    "all ranks must call the same operations, in the same order, with the same sizes and types";
inline constexpr const char* kHasEnded = "that process has ended: its last lines say why";

// The operation that this member waits in.
struct BlockedOperation {
  std::string name;             // "all_reduce 'gradients'"
  std::uint64_t place = 0;      // among the group's collectives; 0: only some take part
  std::uint64_t signature = 0;  // equal on members that are in the same operation
  Seconds waited{0};
  std::uint32_t group = 0;  // which, see OperationFacts
};

struct Diagnosis {
  // "rank 1 (host b, pid 4711) has not entered all_reduce 'gradients' on axis data; ranks 0 and 2
  // have waited 60.0 s; it last completed all_reduce 'loss' 61 s ago"
  std::string message;
  std::string hint;
  // The member that the message names, if that one may itself wait for another, or has just failed
  // in another operation. What it knows says more.
  std::optional<int> member_to_ask = {};
  // True if members are in different operations, or give different tensors: the member that is
  // named says the same of this one.
  bool mutual = false;
};

// Diagnoses `wait`. `snapshots` are by member; they may be missing, or only say what the process
// does. `suspects` are the members that this one has heard nothing from.
[[nodiscard]] Diagnosis diagnose(const Members& members, const BlockedOperation& wait,
                                 std::span<const std::optional<RankSnapshot>> snapshots,
                                 const std::vector<int>& suspects);

}  // namespace troika
