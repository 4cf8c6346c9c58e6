// How much memory the tensors of each rank of a job are going to take, worked out before any of it
// is allocated: the rank's part of the model goes through a step on tensors without memory
// (memory_meta.h), with the units, the schedule, the hooks and the buffers that train.
#pragma once

#include <troika/recipe/recipe.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troika {

// The memory that holds the tensors of a rank.
enum class TensorPlace { kHost, kDevice };

// The bytes of tensors on one rank, where they lie. Those that the host has for a rank on a device
// stand apart.
struct MemoryPlan {
  // The storages of parameters (docs/zero.md). Masters that serve as working weights count as
  // masters.
  std::int64_t values = 0;
  std::int64_t masters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  // The memory beside them: of units that are gathered or reduced, and constant tables.
  std::int64_t buffers = 0;
  // The samples that are ready for later steps.
  std::int64_t batches = 0;
  // The most that forward passes keep for their backward passes, with transfers in flight.
  std::int64_t activations = 0;
  // The most temporary tensors of units at any one time.
  std::int64_t transient = 0;
  // The most while initial values are drawn.
  std::int64_t start = 0;
  // The most during an evaluation; 0 where none is made.
  std::int64_t evaluation = 0;
  // The most while the model, or a step's dump, is gathered (rank 0 then has all of it in one
  // piece), and while that and a dump's samples are written.
  std::int64_t gathering = 0;
  std::int64_t writing = 0;
  // The bytes that this rank sends to rank 0 when the model is gathered.
  std::int64_t sent = 0;
  // The memory of the host for a rank on a device; else 0.
  std::int64_t host_running = 0;  // the most while values are drawn and steps are made
  std::int64_t host_staging = 0;  // the most of collectives that go through the host
  std::int64_t host_saving = 0;   // the most while the model is gathered and written
  TensorPlace place = TensorPlace::kHost;
  // The most forward passes of a single virtual stage whose backward pass is to come.
  int peak_stage_activations = 0;

  [[nodiscard]] std::int64_t storages() const { return values + masters + gradients + optimizer; }
  // Returns the most during a step.
  [[nodiscard]] std::int64_t step() const {
    return storages() + buffers + batches + activations + transient;
  }
  [[nodiscard]] std::int64_t saving() const { return std::max(gathering, writing); }
  // Returns the most of the whole run.
  [[nodiscard]] std::int64_t peak() const;
  // Returns the most in the host's memory, beside the process. `is_staged`: whether collectives of
  // a device's tensors go through it.
  [[nodiscard]] std::int64_t host_bytes(bool is_staged) const;
};

// The approximate memory of a process beside its tensors: code, threads, and the libraries' own
// memory.
inline constexpr std::int64_t kProcessBytes = std::int64_t{192} << 20;

// Sets the thread count of this process during its lifetime. It is the one that the launcher gives
// each of so many ranks of a host. Predictions need it: kernels take scratch memory for each
// thread.
class ScopedRankThreads {
 public:
  explicit ScopedRankThreads(int ranks_per_node);
  ~ScopedRankThreads();
  ScopedRankThreads(const ScopedRankThreads&) = delete;
  ScopedRankThreads& operator=(const ScopedRankThreads&) = delete;

 private:
  int before_;
};

// Predicts the memory of a rank of a resolved `recipe`, with as many threads as this process has.
// Only one call at a time may run in a process. The plan of rank 0 lacks the memory that it
// receives while the model is gathered; predict_job() knows the other ranks. Throws UsageError for
// a model that cannot be split as the recipe says.
[[nodiscard]] MemoryPlan predict_memory(const Recipe& recipe, int rank,
                                        TensorPlace place = TensorPlace::kHost);

// Ranks that need the same memory but for the roundings of their shards (docs/zero.md).
struct RankKind {
  std::vector<int> ranks;  // ascending
  MemoryPlan plan;         // of the first
};

// Returns false to end the prediction. Receives the plans so far, once of all kinds and then after
// the steps of each. A plan whose steps are to come has storages and start alone.
using ShouldContinue = std::function<bool(const std::vector<RankKind>&)>;

// Predicts the memory of a resolved recipe's job. Every rank is in exactly one kind.
[[nodiscard]] std::vector<RankKind> predict_job(const Recipe& recipe,
                                                TensorPlace place = TensorPlace::kHost,
                                                const ShouldContinue& should_continue = {});

// Predicts ranks [first, first + count) of the job alone. What rank 0 receives as the model is
// gathered is not counted.
[[nodiscard]] std::vector<RankKind> predict_ranks(const Recipe& recipe, int first, int count,
                                                  TensorPlace place);

}  // namespace troika
