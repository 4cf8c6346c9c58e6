// What kinds of sync have in common whose replicas go their own ways: islands of ranks that act as
// one in a step, as in AllReduceSync, and whose parameters differ from those of other islands.
#pragma once

#include <troika/sync/flat_masters.h>
#include <troika/sync/kind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Agrees with the other islands now and then. What lies outside of training (signals, wishes for a
// checkpoint) is told in steps in which all meet, at the latest after kMeetingSteps. Between them
// the sums of a step are those of the island, and its valid targets stand for those of every other
// until all have met.
class LooseSync : public ReplicaSync {
 public:
  void begin_step(int microbatches, Seconds timeout) override;
  void reduce(const StepPart& own) override;
  [[nodiscard]] Updater finish() override { return inner_.finish(); }
  [[nodiscard]] StepSums sums() override;
  void end_step(bool applied) override;
  void refresh() override { inner_.refresh(); }
  // Adds "sync.step" and this island's counts.
  void save(StateDict& state) const override;
  void add_places(StateDict& state, const HasTensor& has) const override;
  void load(const StateDict& state) override;
  [[nodiscard]] std::int64_t smallest(std::int64_t own, std::string_view label) const override {
    return inner_.smallest(own, label);
  }
  [[nodiscard]] StepSums sum(const StepPart& own, std::string_view label) const override;
  [[nodiscard]] bool goes_on_apart(const HasTensor& has) const override;
  [[nodiscard]] Replicas replicas() const override;
  void average(const at::Tensor& values) const override;

  void begin_pass(int microbatch, int stage) override { inner_.begin_pass(microbatch, stage); }
  void unshard(int unit, Direction direction) override { inner_.unshard(unit, direction); }
  void reshard(int unit) override { inner_.reshard(unit); }
  void prepare_gradients(int unit) override { inner_.prepare_gradients(unit); }
  void gradients_ready(int unit) override { inner_.gradients_ready(unit); }

  static constexpr std::int64_t kMeetingSteps = 10;

 protected:
  // `kind` is its word in a recipe, and in the names of what it saves.
  LooseSync(std::string_view kind, Arena& arena, SyncGroups groups);

  // Return whether all ranks still act as one in the step under way, and whether all meet in it.
  [[nodiscard]] virtual bool is_together() const { return false; }
  [[nodiscard]] virtual bool all_meet() const { return (step_ + 1) % kMeetingSteps == 0; }
  // Exchanges parameters after the update of a step. Returns whether masters have changed.
  virtual bool exchange() = 0;

  [[nodiscard]] Arena& arena() const { return arena_; }
  [[nodiscard]] const FlatMasters& masters() const { return masters_; }
  [[nodiscard]] const SyncGroups& groups() const { return groups_; }
  [[nodiscard]] Call call(std::string_view label) const;
  // Returns the steps taken before the one under way.
  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] AllReduceSync& inner() { return inner_; }
  // Returns whether a loaded state is of this kind, and of as many islands.
  [[nodiscard]] bool is_of_same_islands(const StateDict& state) const;

  // Return the counts that this island keeps from step to step: the weights of the targets since
  // its last exchange, and of those that are on their way; valid targets since all met, and what
  // has been told of them.
  [[nodiscard]] double& weight() const { return counts_.mutable_data_ptr<double>()[0]; }
  [[nodiscard]] double& sent_weight() const { return counts_.mutable_data_ptr<double>()[1]; }

 private:
  static constexpr std::int64_t kCounts = 4;
  [[nodiscard]] double& valid() const { return counts_.mutable_data_ptr<double>()[2]; }
  [[nodiscard]] double& reported_valid() const { return counts_.mutable_data_ptr<double>()[3]; }
  // The name of an island's counts in a state.
  [[nodiscard]] std::string counts_name(int island) const;
  [[nodiscard]] StepReduction world_reduction(const StepPart& own, std::string_view label) const;

  std::string kind_;
  Arena& arena_;
  SyncGroups groups_;
  AllReduceSync inner_;  // of the island
  FlatMasters masters_;
  std::int64_t step_ = 0;
  at::Tensor counts_;                    // [kCounts]
  StepPart notes_;                       // since all met
  std::optional<StepReduction> of_all_;  // on its way
};

}  // namespace troika
