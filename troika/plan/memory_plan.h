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

// Bytes of tensors on one rank.
struct MemoryPlan {
  // Storages of parameters (docs/zero.md). Masters that serve as working weights count as masters.
  std::int64_t values = 0;
  std::int64_t masters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  // Beside them: of units that are gathered or reduced, and constant tables.
  std::int64_t buffers = 0;
  // Samples that lie ready.
  std::int64_t batches = 0;
  // What forward passes keep for their backward passes, at most, with what is on its way.
  std::int64_t activations = 0;
  // Temporary tensors of units, at the moment when the most is alive.
  std::int64_t transient = 0;
  // The most while initial values are drawn.
  std::int64_t start = 0;
  // The most during an evaluation; 0 where none is made.
  std::int64_t evaluation = 0;
  // The most while the model, or a step's dump, is gathered (rank 0 then has all of it in
  // one piece), and while that and a dump's samples are written.
  std::int64_t gathering = 0;
  std::int64_t writing = 0;
  // What this rank sends to rank 0 when it is gathered.
  std::int64_t sent = 0;
  // Forward passes of a single virtual stage whose backward pass is to come, at most.
  int peak_stage_activations = 0;

  [[nodiscard]] std::int64_t storages() const { return values + masters + gradients + optimizer; }
  // The most during a step.
  [[nodiscard]] std::int64_t step() const {
    return storages() + buffers + batches + activations + transient;
  }
  [[nodiscard]] std::int64_t saving() const { return std::max(gathering, writing); }
  // The most of the whole run.
  [[nodiscard]] std::int64_t peak() const;
};

// What a process has beside its tensors, about: code, threads, and the libraries' own memory.
inline constexpr std::int64_t kProcessBytes = std::int64_t{192} << 20;

// While it lives this process has the threads that the launcher gives each of so many ranks of a
// host, for predictions on behalf of them: kernels take scratch memory for each thread.
class ScopedRankThreads {
 public:
  explicit ScopedRankThreads(int ranks_per_node);
  ~ScopedRankThreads();
  ScopedRankThreads(const ScopedRankThreads&) = delete;
  ScopedRankThreads& operator=(const ScopedRankThreads&) = delete;

 private:
  int before_;
};

// `recipe` is resolved; counts on as many threads as this process has. One call at a time in a
// process. What rank 0 receives while the model is gathered is not in its plan:
// predict_job() knows the others. Throws UsageError for a model that cannot be split as the recipe
// says.
[[nodiscard]] MemoryPlan predict_memory(const Recipe& recipe, int rank);

// Ranks that need the same but for the roundings of their shards (docs/zero.md).
struct RankKind {
  std::vector<int> ranks;  // ascending
  MemoryPlan plan;         // of the first
};

// Asked with what is known so far, once of all kinds and then after the steps of each: a plan whose
// steps are to come has storages and start alone. False ends the prediction.
using ShouldContinue = std::function<bool(const std::vector<RankKind>&)>;

// Every rank of a resolved recipe is in exactly one.
[[nodiscard]] std::vector<RankKind> predict_job(const Recipe& recipe,
                                                const ShouldContinue& should_continue = {});

// Of ranks [first, first + count), processes included.
[[nodiscard]] std::int64_t bytes_of_ranks(const std::vector<RankKind>& kinds, int first, int count);

}  // namespace troika
