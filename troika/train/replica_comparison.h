// Finds replicas whose parameters have come apart: by a fault of memory or of a processor, or by a
// program that writes to them on some ranks only. Replicas are compared by hash. Between equal
// processors every bit has to be the same. Differences that rounding explains between kinds of
// processors are mended, with a line in the log.
#pragma once

#include <troika/base/failure.h>
#include <troika/base/time.h>
#include <troika/comm/group.h>
#include <troika/param/arena.h>
#include <troika/param/named_tensor.h>
#include <troika/sync/replica_sync.h>
#include <troika/train/job.h>
#include <troika/train/trainer.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace troika {

// The values of one rank.
struct ReplicaValues {
  Arena& arena;
  // Gathers working weights where no rank has all. Between steps.
  ReplicaSync& sync;
  // Holds what all replicas have in common beside parameters.
  std::span<const NamedTensor> buffers = {};
};

struct ReplicaRank {
  std::string name;       // for messages: "rank 1 on host b"
  std::string processor;  // equal for ranks that compute the same bits: processor_kind()
};

// Returns what ranks have in common that compute the same bits: the model of the processor, and how
// many threads share the work.
[[nodiscard]] std::string processor_kind(at::Device device);

// Collective over `replicas`, which hold the same parameters: compares them. Returns the failure of
// the first parameter or buffer that differs, the same on every rank: it names the ranks that stand
// alone where most are equal, and else two. Where ranks update parameters themselves, on several
// kinds of processors, and rounding explains a difference between these, all take over the values
// of the first rank, which says so in the log. Throws DeadlineError, PeerError.
[[nodiscard]] std::optional<Failure> compare_replicas(const Group& replicas, ReplicaValues values,
                                                      const ReplicaRank& own, Seconds timeout);

// Collective among all ranks of a job, after a step: compares the replicas of a trainer. Throws
// RankDiedError on every rank, the same, where some have come apart.
void check_replicas(Trainer& trainer, const Job& job, std::int64_t step);

}  // namespace troika
