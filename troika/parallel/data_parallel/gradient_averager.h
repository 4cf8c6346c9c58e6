// Internal. Averages the gradients of a set of parameters over the ranks during each backward pass.
// A hook on every parameter hears when its gradient has been added up; gradients lie in the buckets
// of an arena; a bucket is launched when its last gradient is there and all buckets before it are;
// the end of the backward pass waits for all of them.
//
// In the normal case a step costs one all-reduce a bucket and nothing else: what ranks have to tell
// each other beside gradients travels in the padding of the last bucket (StepFacts). Only when
// those tell of a divergence do the ranks run further collectives.
//
// With ZeRO (options.zero_stage) a bucket is reduced into each rank's own shard, facts travel by
// themselves, and the shards' gradients are for the optimiser to use before the next average.
#pragma once

#include <troika/parallel/data_parallel/bucket_hook.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/gradient_buckets.h>
#include <troika/parallel/data_parallel/parameter_shards.h>
#include <troika/parallel/data_parallel/replica_agreement.h>
#include <troika/parallel/data_parallel/value_digest.h>
#include <troika/session/session.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika::detail {

class GradientAverager {
 public:
  // `parameters` are all of the module's, each once, equal on all ranks; those that require a
  // gradient are trained. `check_for_new_parameters` is called in a backward pass whose graph is
  // not the size of the one before, before anything is averaged; and in one that leaves parameters
  // out, before what is left is averaged: another parameter may have taken their place.
  GradientAverager(std::vector<NamedTensor> parameters, Session session,
                   DataParallelOptions options, std::function<void()> check_for_new_parameters);
  ~GradientAverager();
  GradientAverager(const GradientAverager&) = delete;
  GradientAverager& operator=(const GradientAverager&) = delete;

  // Why a parameter cannot be taken in; empty if it can.
  [[nodiscard]] static ValidationError validate_parameter(const NamedTensor& parameter);

  // Whether backward passes end in an average.
  [[nodiscard]] bool synchronises() const { return synchronises_; }
  void synchronise(bool yes) { synchronises_ = yes; }
  // Of this rank, in the next average.
  [[nodiscard]] const std::shared_ptr<double>& weight() const { return weight_; }
  [[nodiscard]] int buckets() const { return static_cast<int>(buckets_->all().size()); }

  // Something else in the backward pass waits for all ranks, so nothing here may wait for a bucket
  // before the pass has ended: ranks that leave parameters out have sent fewer. Where that goes
  // through the same group, or weights have to be known before the first bucket, all buckets are
  // launched at the end of the pass. Call before the first backward pass.
  enum class ConcurrentCollectives { kSameGroup, kSeparateGroup };
  void expect_concurrent(ConcurrentCollectives collectives);

  // Takes part in an average without a batch. False when no rank had one: then there are no
  // gradients.
  bool average_without_batch();

  // How often each parameter was written to, and whether it was since.
  [[nodiscard]] std::vector<std::uint32_t> versions() const;
  void throw_if_written(std::span<const std::uint32_t> versions) const;
  // All ranks have the same values again.
  void forget_writes();

  // What an optimiser updates on this rank of a parameter; at stage 0 the parameter. Throws
  // UsageError if it is none of those that are trained.
  [[nodiscard]] std::vector<at::Tensor> shards_of(const at::Tensor& parameter) const;
  [[nodiscard]] std::vector<at::Tensor> shards() const;
  // See UpdateAccess.
  [[nodiscard]] std::string describe_shards() const;
  void check_saved_shards(const std::string* saved) const;
  // Around an optimiser's step. The second is collective from stage 1 on: values are whole again.
  void begin_update();
  void end_update();
  void zero_grad();
  // Collective from stage 1 on.
  double clip_grad_norm(double max_norm);
  // An optimiser is going to update shards().
  void expect_updates() { updated_ = true; }
  // The model is gone: backward passes are not its any more, though an optimiser may keep this
  // object.
  void remove_hooks();
  // Bytes for gradients, and from stage 1 on for values.
  [[nodiscard]] std::int64_t bytes() const { return buckets_->bytes(); }

 private:
  class Hook;
  void ready(int index);
  void begin_pass(int task);
  void abort_pass();
  void check_parameter_memory();
  void copy_into_bucket(GradientSlot& slot) const;
  void weigh_gradients();
  void launch(ModuleBucket& bucket);
  void launch_ready_buckets();
  void refuse_unused_gradients() const;
  void end_pass();
  void launch_remaining_buckets();
  void start_side_operations();
  StepFacts wait_for_buckets();
  void finalize(const StepFacts& facts);
  void resolve_divergence();
  void compare_writes() const;
  void publish_gradients();
  void rebuild_buckets();
  [[nodiscard]] std::unique_ptr<GradientBuckets> make_buckets(std::span<const int> order);
  [[nodiscard]] StepFacts own_facts() const;
  [[nodiscard]] std::uint64_t sum_of_versions() const;
  [[nodiscard]] std::vector<std::uint32_t> writes() const;

  std::vector<NamedTensor> parameters_;     // also those that are not trained
  std::optional<ValueDigest> digest_;       // of these; if values are to be checked
  std::uint64_t digest_skipped_until_ = 0;  // this average: values have just been made equal
  std::vector<GradientSlot> slots_;
  Session session_;
  Group group_;
  DataParallelOptions options_;
  std::function<void()> check_for_new_parameters_;
  bool normalises_weights_;  // weights are over their mean before gradients are reduced:
                             // weigh_gradients()
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<ParameterShards> shards_;  // from ZeRO stage 1 on
  bool updated_ = false;                     // by an optimiser of shards()
  bool pending_ = false;                     // gradients of shards() wait for it
  std::shared_ptr<double> weight_ = std::make_shared<double>(1.0);
  bool synchronises_ = true;
  bool launches_at_end_ = false;  // buckets are launched at the end of the pass

  // Of the backward pass under way.
  bool in_pass_ = false;
  bool averages_ = true;  // it ends in an average
  bool present_ = true;   // this rank has a batch
  int task_ = -1;         // autograd's number of it
  std::uint64_t pass_ = 0;
  std::size_t next_ = 0;     // the bucket whose turn it is
  double factor_ = 1;        // what this rank's gradients are multiplied by
  std::vector<int> unused_;  // slots without a gradient
  Work facts_work_, used_work_;
  at::Tensor used_;  // on how many ranks each slot has a gradient; only where unused ones may be

  std::size_t graph_size_ = 0;       // of the last backward pass
  std::uint64_t averages_done_ = 0;  // equal on all ranks
  std::uint64_t base_version_ = 0;   // sum_of_versions() when all ranks had the same values
  // The same, one by one; and with ZeRO writes() when the optimiser's last step began.
  std::vector<std::uint32_t> base_versions_, writes_before_update_;
  bool hooked_ = true;
  bool rebound_ = false;  // a parameter has got other memory since then
  std::optional<std::vector<int>> order_ = std::vector<int>();  // seen in the first pass
};

}  // namespace troika::detail
