// What processes have in common whose parameters lie on servers: the coordinator's, which looks on,
// and workers, of one rank or of an island.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/sync/all_reduce_sync.h>
#include <troika/sync/flat_masters.h>
#include <troika/sync/remote.h>

#include <cstdint>
#include <string_view>

namespace troika {

struct ServerJobOptions;

// Does what all of them do for passes on parameters: that of one island, whose ranks are `inside`.
class RemoteSync : public ReplicaSync {
 public:
  explicit RemoteSync(Arena& arena, AllReduceOptions inside = {})
      : arena_(arena), inner_(arena, std::move(inside)), masters_(arena) {}

  void begin_step(int microbatches, Seconds timeout) override {
    inner_.begin_step(microbatches, timeout);
  }
  void reduce(const StepPart& own) override { inner_.reduce(own); }
  [[nodiscard]] Updater finish() override {
    static_cast<void>(inner_.finish());
    return Updater::kRemote;
  }
  [[nodiscard]] StepSums sums() override { return inner_.sums(); }
  void end_step(bool applied) override { inner_.end_step(applied); }
  void refresh() override { inner_.refresh(); }
  [[nodiscard]] std::int64_t smallest(std::int64_t own, std::string_view label) const override {
    return inner_.smallest(own, label);
  }
  [[nodiscard]] StepSums sum(const StepPart& own, std::string_view label) const override {
    return inner_.sum(own, label);
  }
  void begin_pass(int microbatch, int stage) override { inner_.begin_pass(microbatch, stage); }
  void unshard(int unit, Direction direction) override { inner_.unshard(unit, direction); }
  void reshard(int unit) override { inner_.reshard(unit); }
  void prepare_gradients(int unit) override { inner_.prepare_gradients(unit); }
  void gradients_ready(int unit) override { inner_.gradients_ready(unit); }

 protected:
  [[nodiscard]] Arena& arena() const { return arena_; }
  [[nodiscard]] const FlatMasters& masters() const { return masters_; }
  // Returns memory of the host for so many values of masters.
  [[nodiscard]] at::Tensor host_values(std::int64_t count) const;
  // Finishes a step whose update is this process's.
  [[nodiscard]] Updater finish_here() { return inner_.finish(); }
  // Puts values [masters().size()] of the host in the arena.
  void take(const at::Tensor& values);
  // Makes passes use masters that have been written.
  void publish();

 private:
  Arena& arena_;
  AllReduceSync inner_;
  FlatMasters masters_;
};

// A worker: pulls parameters, and pushes gradients, or what steps of its own have changed.
class RemoteWorker : public RemoteSync, public RemoteWork {
 public:
  RemoteWorker(Arena& arena, const ServerJobOptions& job, AllReduceOptions inside = {});

  [[nodiscard]] RemoteWork* work() override { return this; }
  [[nodiscard]] std::int64_t local_steps() const override { return local_steps_; }
  [[nodiscard]] Updater finish() override {
    return local_steps_ > 0 ? finish_here() : RemoteSync::finish();
  }

 protected:
  // Returns the update that pushes a change [n], what was pulled less what has become of it, and
  // makes it as much of a gradient as the targets that it was made of.
  [[nodiscard]] RemoteUpdate change_in(const at::Tensor& change, RemoteUpdate update) const;

 private:
  std::int64_t local_steps_;
  double outer_lr_;
};

}  // namespace troika
