// Every time constant of failure handling, and which process waits how long for what. Two more are
// the user's: the time-out of an operation and that of the rendezvous ([comm] in a recipe).
//
// The deadline of an operation passes. The rank that waited finds the culprit and throws; its queue
// leaves the error to it for kDiagnosis, which has room for all of that:
//
//   deadline          + 1 s                  + 2 s             + 2.25 s       + 3 s
//   |-- kSnapshots ---|-- kIndirectReason ---|-- kPeerReason --| throws       | kDiagnosis
//   | What do all     | Is the rank to blame | Did that one    |
//   | ranks do? Other | held up by another?  | abort by        |
//   | hosts answer    | A look every         | itself, why?    |
//   | in the store.   | kReasonPoll.         |                 |
//
//   In shared memory no rank has to be asked. A rank that fails also waits for peers that write to
//   its tensors, kPeerWriters at most. Across hosts each step of an operation has kHostStep more
//   than the one before, so that the rank that waits for the culprit itself is the first.
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

// The longest time from the deadline of an operation until it throws.
inline constexpr Seconds kDiagnosis{3};
// The time for the ranks and launchers of other hosts to leave what they see in the store.
inline constexpr Seconds kSnapshots{1};
// The time for a rank that may be held up itself to name the rank that holds it up.
inline constexpr Seconds kIndirectReason{1};
inline constexpr Seconds kReasonPoll{0.02};
// The time for a peer that has failed to publish its reason. It does so as it breaks the
// connection.
inline constexpr Seconds kPeerReason{0.25};
// The time for a peer that is looking for the reason itself.
inline constexpr Seconds kSlowPeerReason = kIndirectReason + 2 * kPeerReason;
static_assert(kSnapshots + kIndirectReason + kPeerReason < kDiagnosis);
static_assert(kPeerReason + kSnapshots + kSlowPeerReason < kDiagnosis);

// The time for one answer of the abort store, whose process may be stopped.
inline constexpr Seconds kStoreAnswer{0.5};
// The interval at which a rank asks the abort store while none of its pending operations ends. The
// store gets one request of each such member in that time, and none of members that make progress.
inline constexpr Seconds kAbortPoll{1};
// The time that a step of an operation across hosts has beyond that of the step before.
inline constexpr Seconds kHostStep{0.5};

// Shared memory: the time for a peer that is stopped while it writes to this member's tensors.
inline constexpr Seconds kPeerWriters{0.5};
static_assert(kReasonPoll + 2 * kIndirectReason + kPeerWriters < kDiagnosis);
// Shared memory: the time for a peer that has closed its memory to publish its reason.
inline constexpr Seconds kClosedMemoryReason{2};
// Shared memory: the interval between two looks at a member that is about to write its record.
inline constexpr Seconds kRecordPoll{1e-3};

// At the end of a group ---------------------------------------------------------------------------

// The time for all members to read their last messages, where all operations went well.
inline constexpr Seconds kShutdown{5};
// MPI: the time for a receive to be cancelled, and for the messages that announce an abort to
// leave.
inline constexpr Seconds kMpiCancel{0.1};
inline constexpr Seconds kMpiAbortMessages{1};
// MPI: the pause before MPI_Finalize, once the ranks have met.
inline constexpr std::chrono::milliseconds kMpiFinalizePause{200};
// NCCL: the time that a communicator has to send pending data before it is destroyed.
inline constexpr std::chrono::seconds kNcclFlush{5};

// At the rendezvous -------------------------------------------------------------------------------

// The time for the store to open, and for one more connection to a store that is known to be open.
inline constexpr std::chrono::seconds kStoreStart{30};
inline constexpr Seconds kStoreReconnect{30};
// The time for the next store to open, where the previous job's accepts a connection as it closes.
// Then the interval between attempts.
inline constexpr Seconds kStoreClosing{1};
inline constexpr Seconds kStoreClosingPoll{0.02};
// TCP's keep-alive probes on the connection to the store: the silence before the first, the
// interval between probes, and their number.
inline constexpr std::chrono::seconds kStoreIdle{15};
inline constexpr std::chrono::seconds kStoreProbe{5};
inline constexpr int kStoreProbes = 9;
// The time for one address of the store's host. Then the shortest and the longest pause between two
// rounds of all its addresses.
inline constexpr Seconds kConnectAddress{3};
inline constexpr Seconds kFirstConnectPause{0.01};
inline constexpr Seconds kLongestConnectPause{0.25};
// The time for the other processes to read why the job cannot begin, or how it has ended. The store
// then ends with the process that keeps it.
inline constexpr Seconds kReadBeforeStoreGoes{5};
// The length of one wait of a store watch. A watch repeats it without end, as no wait is without a
// deadline.
inline constexpr Seconds kWatchTurn{600};
// The time until a log line says what the job waits for, and the longest between two such lines.
inline constexpr Seconds kFirstNotice{10};
inline constexpr Seconds kLongestNotice{120};

// In the launcher ---------------------------------------------------------------------------------

// The time for the other ranks to report what they saw, once one has failed.
inline constexpr Seconds kReportTime{1};
// The time between SIGTERM and SIGKILL.
inline constexpr Seconds kTerminateGrace{5};
// The time between Ctrl-C and SIGKILL: a rank may have something to save.
inline constexpr Seconds kInterruptGrace{10};
// The time to write the ranks' last output, to a terminal that may be stopped.
inline constexpr Seconds kOutputFlush{5};
// The time for ranks to stop by themselves on Ctrl-Z, and the interval between two checks.
inline constexpr Seconds kStop{1};
inline constexpr Seconds kStopPoll{0.005};
// The time for the launchers of other nodes, where this node's ranks did well. Theirs may still
// write.
inline constexpr Seconds kNodesWhenWell{60};
// The interval between two checks whether the user has interrupted the wait for other nodes.
inline constexpr Seconds kNodesTurn{0.2};

}  // namespace troika::failure_timing
