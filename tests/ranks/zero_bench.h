// A small model in training on one rank, at any stage of ZeRO, and what it leaves behind.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/models/gpt/options.h>
#include <troika/models/mlp/options.h>
#include <troika/observe/recorder.h>
#include <troika/optim/options.h>
#include <troika/sync/gradients/data_axis.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {

// The data axis of all ranks, as one shard group or in groups of `width` with replicas across.
[[nodiscard]] Sharding sharding_over(const Rank& rank, int stage, int width = 0,
                                     const std::shared_ptr<Recorder>& recorder = nullptr);

struct ZeroRun {
  ModelOptions model = {};
  OptimizerOptions optimizer = {};
  NumericTypes types{at::kFloat, at::kFloat};
  int microbatches = 1;  // by this rank in a step
  double clip = 0.5;
};

[[nodiscard]] ModelOptions small_gpt();
[[nodiscard]] ModelOptions small_mlp();
// The default options with the optimiser of this name; momentum is 0.9 where it has any.
[[nodiscard]] OptimizerOptions optimizer_of(std::string_view kind);

// What a run leaves: whole tensors and figures, under names.
struct Outcome {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  // The first thing that has not the same bits; empty if there is none.
  [[nodiscard]] std::string difference_from(const Outcome& other) const;
};

class ZeroBench {
 public:
  ZeroBench(const ZeroRun& run, Sharding sharding, int data_rank);

  // One step; returns the norm of its gradients. `hooks`, if any, are called in place of the data
  // axis, to which they pass every call on.
  double step(UnitHooks* hooks = nullptr);
  // Loss of a pass without gradients.
  double evaluate();
  // Collective: masters, optimiser state, norms so far, the loss of an evaluation.
  [[nodiscard]] Outcome outcome();

  [[nodiscard]] Arena& arena() { return *arena_; }
  [[nodiscard]] DataAxis& axis() { return *axis_; }
  [[nodiscard]] std::int64_t arena_bytes() const;

 private:
  [[nodiscard]] Microbatch microbatch(int index) const;
  // Whole tensors by parameter, of this rank's flat views by shard.
  [[nodiscard]] std::vector<at::Tensor> whole(const std::vector<at::Tensor>& by_shard) const;

  ZeroRun run_;
  int data_rank_;
  std::int64_t steps_ = 0;
  std::vector<double> norms_;
  std::unique_ptr<UnitStage> stage_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<DataAxis> axis_;
  SharedSums sums_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace troika::test
