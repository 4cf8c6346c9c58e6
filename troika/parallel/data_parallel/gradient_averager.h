// Internal. Averages the gradients of a set of parameters over the ranks during each backward pass:
// the front of BucketReducer for autograd's hooks. The end of the backward pass waits for all
// buckets.
//
// In the normal case a step costs one all-reduce a bucket and nothing else: what ranks have to tell
// each other beside gradients travels in the padding of the last bucket (StepFacts). Only when
// those tell of a divergence do the ranks run further collectives.
//
// With ZeRO (options.zero_stage) a bucket is reduced into each rank's own shard, facts travel by
// themselves, and the shards' gradients are for the optimiser to use before the next average.
#pragma once

#include <troika/parallel/data_parallel/backward_hooks.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/gradient_buckets.h>
#include <troika/parallel/data_parallel/nonfinite_gradients.h>
#include <troika/parallel/data_parallel/optimizer_access.h>
#include <troika/parallel/data_parallel/parameter_shards.h>
#include <troika/parallel/data_parallel/ready_gradients.h>
#include <troika/parallel/data_parallel/replica_checker.h>
#include <troika/parallel/data_parallel/step_weight.h>
#include <troika/parallel/data_parallel/unused_parameters.h>
#include <troika/session/session.h>
#include <troika/sync/gradients/bucket_reducer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace troika::detail {

class GradientAverager final : private BackwardHooks::Listener, private BucketReducer::Front {
 public:
  // Averages the gradients of `parameters`. These are all of the module's, each once, equal on all
  // ranks; those that require a gradient are trained. A backward pass calls
  // `check_for_new_parameters` in two cases: when its graph differs in size from the one before,
  // before the averages; and when it leaves parameters out, before those are averaged. Another
  // parameter may have taken their place.
  GradientAverager(std::vector<NamedTensor> parameters, Session session,
                   DataParallelOptions options, std::function<void()> check_for_new_parameters);
  GradientAverager(const GradientAverager&) = delete;
  GradientAverager& operator=(const GradientAverager&) = delete;

  // Returns whether backward passes end in an average.
  [[nodiscard]] bool synchronises() const { return synchronises_; }
  void synchronise(bool yes) { synchronises_ = yes; }
  // Returns the weight of this rank in the next average.
  [[nodiscard]] const std::shared_ptr<double>& weight() const { return weight_.value(); }
  [[nodiscard]] int buckets() const { return static_cast<int>(buckets_.plan().size()); }
  [[nodiscard]] WriteTracker& writes() { return writes_; }
  [[nodiscard]] OptimizerAccess& optimizer() { return optimizer_; }
  // Returns the bytes for gradients, and from stage 1 on for values.
  [[nodiscard]] std::int64_t bytes() const { return buckets_.bytes() + reducer_->buffer_bytes(); }

  // Prepares for another collective in the backward pass that waits for all ranks. No bucket may
  // then be waited for before the pass has ended: ranks that leave parameters out have sent fewer.
  // If that collective shares the group, or weights have to be known before the first bucket, all
  // buckets are launched at the end of the pass. Call before the first backward pass.
  enum class ConcurrentCollectives { kSameGroup, kSeparateGroup };
  void expect_concurrent(ConcurrentCollectives collectives);

  // Takes part in an average without a batch. Returns false if no rank had one: there are no
  // gradients then.
  bool average_without_batch();
  // Tells that all ranks have the same values again.
  void forget_writes() { checker_.reset(); }
  // Removes the hooks once the model is gone, though an optimiser may keep this object.
  void remove_hooks();

 private:
  void validate_pass() override;
  void on_new_graph() override { check_for_new_parameters_(); }
  void begin_pass() override;
  void gradient_ready(std::size_t index) override;
  void complete_pass() override;
  void end_pass() override;
  void abort_pass() override;

  void place_gradients(std::size_t bucket, const at::Tensor& gradients) override;
  void complete_gradients(std::size_t bucket) override;

  void start_side_operations();
  StepFacts wait_for_buckets();
  void finalize(const StepFacts& facts);
  void resolve_divergence();
  void publish_gradients();
  void rebuild_buckets();
  [[nodiscard]] GradientBuckets::Options bucket_options() const;
  // Returns a reducer of buckets_.
  [[nodiscard]] std::unique_ptr<BucketReducer> make_reducer();
  [[nodiscard]] StepFacts own_facts() const;

  Session session_;
  Group group_;
  DataParallelOptions options_;
  std::function<void()> check_for_new_parameters_;
  std::vector<GradientSlot> slots_;
  StepWeight weight_;
  ReadyGradients ready_;
  UnusedParameters unused_;
  NonfiniteGradients nonfinite_;
  GradientBuckets buckets_;
  std::vector<BucketReducer::Expected> expected_;  // by bucket
  std::unique_ptr<BucketReducer> reducer_;
  std::unique_ptr<ParameterShards> shards_;  // from ZeRO stage 1 on
  WriteTracker writes_;
  ReplicaChecker checker_;
  OptimizerAccess optimizer_;
  BackwardHooks hooks_;
  bool synchronises_ = true;
  bool launches_at_end_ = false;  // buckets are launched at the end of the pass

  // State of the current average.
  bool averages_ = true;  // the backward pass ends in one
  bool present_ = true;   // this rank has a batch
  double factor_ = 1;     // what this rank's gradients are multiplied by
  Work facts_work_;
};

}  // namespace troika::detail
