// Every time constant of failure handling, and who waits how long for what. Two more are the
// user's: the time-out of an operation and that of the rendezvous ([comm] in a recipe).
//
// The deadline of an operation passes. The rank that waited finds the culprit and throws; its queue
// leaves the error to it for kDiagnosis, which has room for all of that:
//
//   deadline          + 1 s                  + 2 s             + 2.25 s       + 3 s
//   |-- kSnapshots ---|-- kIndirectReason ---|-- kPeerReason --| throws       | kDiagnosis
//   | What do all     | Is the rank to blame | Did that one    |
//   | ranks do? Other | held up by another?  | give up on its  |
//   | hosts answer    | A look every         | own, and why?   |
//   | in the store.   | kReasonPoll.         |                 |
//
//   In shared memory, where nobody has to be asked, a rank that fails also waits for peers that
//   write to its tensors, kPeerWriters at most. Across hosts each step of an operation has
//   kHostStep more than the one before, so that the rank that waits for the culprit itself is the
//   first.
//
// The connection to a peer breaks:
//
//   0                 + 0.25 s          + 1.25 s               + 2.75 s
//   |-- kPeerReason --|-- kSnapshots ---|-- kSlowPeerReason ---| throws
//   | Does it say     | Does its        | It does, and may be  |
//   | why?            | process exist?  | at the search above. |
//
// Ranks that wait for others than the culprit ask the abort store every kAbortPoll, and have an
// answer within kStoreAnswer: all ranks of a group know within two seconds.
//
// A rank fails under a launcher:
//
//   0                 + 1 s                  + 6 s
//   |-- kReportTime --|-- kTerminateGrace ---| SIGKILL
//   | The others are  | SIGTERM              |
//   | told, and say   |                      |     after Ctrl-C: kInterruptGrace, then SIGKILL
//   | what they saw.  |                      |
//
//   Then the last output is written, within kOutputFlush, and the launchers of several nodes agree
//   on the cause: within kReportTime + 2 kTerminateGrace, or kNodesWhenWell where this node's ranks
//   did well. The one that keeps the store stays for kReadBeforeStoreGoes, so that all can read it.
//
// The host of the store loses its power: ranks notice after kStoreIdle + kStoreProbes *
// kStoreProbe, a minute.
#pragma once

#include <troika/base/time.h>

#include <chrono>

namespace troika::failure_timing {

// In an operation ---------------------------------------------------------------------------------

// From the deadline of an operation until it throws, at most.
inline constexpr Seconds kDiagnosis{3};
// For the ranks and launchers of other hosts to leave what they see in the store.
inline constexpr Seconds kSnapshots{1};
// For a rank that may be held up itself to say by whom.
inline constexpr Seconds kIndirectReason{1};
inline constexpr Seconds kReasonPoll{0.02};
// For a peer that has given up to publish its reason: it does so as it breaks the connection.
inline constexpr Seconds kPeerReason{0.25};
// For a peer that looks for the reason itself.
inline constexpr Seconds kSlowPeerReason = kIndirectReason + 2 * kPeerReason;
static_assert(kSnapshots + kIndirectReason + kPeerReason < kDiagnosis);
static_assert(kPeerReason + kSnapshots + kSlowPeerReason < kDiagnosis);

// For one answer of the abort store, which may be part of a process that is stopped.
inline constexpr Seconds kStoreAnswer{0.5};
// How often a rank asks the abort store, while nothing that is under way ends: the store has one
// request of each member by that, and none of members that get on.
inline constexpr Seconds kAbortPoll{1};
// More time for a step of an operation across hosts than for the one before.
inline constexpr Seconds kHostStep{0.5};

// Shared memory: for a peer that is stopped while it writes to this member's tensors.
inline constexpr Seconds kPeerWriters{0.5};
static_assert(kReasonPoll + 2 * kIndirectReason + kPeerWriters < kDiagnosis);
// Shared memory: for a peer that has closed its memory to say why.
inline constexpr Seconds kClosedMemoryReason{2};
// Shared memory: between two looks at a member that is about to write its record.
inline constexpr Seconds kRecordPoll{1e-3};

// At the end of a group ---------------------------------------------------------------------------

// For all members to have read their last messages, where all went well.
inline constexpr Seconds kShutdown{5};
// MPI: for a receive to be cancelled, and for the messages that tell of an abort to leave.
inline constexpr Seconds kMpiCancel{0.1};
inline constexpr Seconds kMpiAbortMessages{1};
// MPI: before MPI_Finalize, once the ranks have met.
inline constexpr std::chrono::milliseconds kMpiFinalizePause{200};
// NCCL: until a call is no longer in progress, which takes microseconds.
inline constexpr std::chrono::minutes kNcclAccept{1};

// At the rendezvous -------------------------------------------------------------------------------

// For the store to open, and for one more connection to a store that is known to be there.
inline constexpr std::chrono::seconds kStoreStart{30};
inline constexpr Seconds kStoreReconnect{30};
// For the next store, where that of the job before lets one connect as it is closed.
inline constexpr Seconds kStoreClosing{1};
inline constexpr Seconds kStoreClosingPoll{0.02};
// TCP's probes on the connection to the store: after so long a silence, how often, and how many.
inline constexpr std::chrono::seconds kStoreIdle{15};
inline constexpr std::chrono::seconds kStoreProbe{5};
inline constexpr int kStoreProbes = 9;
// For one address of the store's host, and between two rounds of all of them.
inline constexpr Seconds kConnectAddress{3};
inline constexpr Seconds kFirstConnectPause{0.01};
inline constexpr Seconds kLongestConnectPause{0.25};
// For the others to read why the job cannot begin, or how it has ended, before the store goes with
// the process that keeps it.
inline constexpr Seconds kReadBeforeStoreGoes{5};
// A watch of the store waits without end, in turns: no wait is without a deadline.
inline constexpr Seconds kWatchTurn{600};
// Until a log line says what the job waits for, and between two such lines at most.
inline constexpr Seconds kFirstNotice{10};
inline constexpr Seconds kLongestNotice{120};

// In the launcher ---------------------------------------------------------------------------------

// For the other ranks to say what they saw, once one has failed.
inline constexpr Seconds kReportTime{1};
// Between SIGTERM and SIGKILL.
inline constexpr Seconds kTerminateGrace{5};
// Between Ctrl-C and SIGKILL: a rank may have something to save.
inline constexpr Seconds kInterruptGrace{10};
// For the ranks' last output to be written, to a terminal that may be stopped.
inline constexpr Seconds kOutputFlush{5};
// For ranks to stop by themselves on Ctrl-Z, and between two looks whether they have.
inline constexpr Seconds kStop{1};
inline constexpr Seconds kStopPoll{0.005};
// For the launchers of other nodes, where the ranks of this one did well: theirs may still write.
inline constexpr Seconds kNodesWhenWell{60};
// Between two looks whether the user has interrupted the wait for other nodes.
inline constexpr Seconds kNodesTurn{0.2};

}  // namespace troika::failure_timing
