// Replicas that stay equal: gradients are summed over all of them in every step, and each rank
// updates its own shards (ZeRO 0 to 3, docs/zero.md).
#pragma once

#include <troika/sync/compression_state.h>
#include <troika/sync/gradients/data_axis.h>
#include <troika/sync/replica_sync.h>

#include <memory>
#include <optional>
#include <vector>

namespace troika {

struct AllReduceOptions {
  // The ranks of all replicas, one group after the other where no group holds them all.
  std::vector<Group> all = {Group()};
  PartialGroups partial = {};
  Seconds timeout = Seconds(60);
  // The factor by which ranks wait longer for the sums than for another collective. The first stage
  // of a pipeline has its last forward pass long before the last stage has.
  double patience = 1;
  // Takes the place of the sum of gradients over several ranks, at stage 0; may be null.
  std::shared_ptr<BucketHook> compress = {};
};

class AllReduceSync final : public ReplicaSync {
 public:
  // Reduces over the groups of `arena.sharding()`. The arena must outlive it.
  AllReduceSync(Arena& arena, AllReduceOptions options);

  void begin_step(int microbatches, Seconds timeout) override;
  void reduce(const StepPart& own) override;
  [[nodiscard]] Updater finish() override;
  [[nodiscard]] StepSums sums() override;
  bool sum_on_device(bool wanted) override;
  [[nodiscard]] DeviceSums queue_sums() override;
  [[nodiscard]] StepSums read_sums(std::span<const double> values) const override;
  void end_step(bool applied) override;
  void refresh() override { axis_.refresh(); }
  // Add what compression keeps.
  void save(StateDict& state) const override;
  void add_places(StateDict& state, const HasTensor& has) const override;
  void load(const StateDict& state) override;
  [[nodiscard]] std::int64_t smallest(std::int64_t own, std::string_view label) const override;
  [[nodiscard]] StepSums sum(const StepPart& own, std::string_view label) const override;

  // Returns the bytes of memory beside the arena's.
  [[nodiscard]] std::int64_t buffer_bytes() const { return axis_.buffer_bytes(); }

  void begin_pass(int microbatch, int stage) override { axis_.begin_pass(microbatch, stage); }
  void unshard(int unit, Direction direction) override { axis_.unshard(unit, direction); }
  void reshard(int unit) override { axis_.reshard(unit); }
  void prepare_gradients(int unit) override { axis_.prepare_gradients(unit); }
  void gradients_ready(int unit) override { axis_.gradients_ready(unit); }

 private:
  [[nodiscard]] Seconds patience() const { return options_.patience * options_.timeout; }
  [[nodiscard]] bool compresses() const { return options_.compress != nullptr; }
  [[nodiscard]] CompressionState kept() const;
  [[nodiscard]] std::vector<CompressedPart> compressed_parts() const;
  [[nodiscard]] StepReduction reduction(const StepPart& own, std::string_view label) const;

  AllReduceOptions options_;
  Arena& arena_;
  DataAxis axis_;
  bool on_device_ = false;             // sums are the device's
  std::optional<StepReduction> sums_;  // on their way, through the host
  std::optional<StepPart> own_;        // for the device
};

}  // namespace troika
