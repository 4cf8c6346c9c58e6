// Internal. What an optimiser has of a DataParallel: the shards that it updates, and what goes
// around its step. At ZeRO stage 0 shards are the parameters themselves; at stages 1 and 2 each
// average takes the place of the one before, so it must have been used by then.
#pragma once

#include <troika/parallel/data_parallel/parameter_shards.h>
#include <troika/parallel/data_parallel/replica_checker.h>
#include <troika/session/session.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troika::detail {

class OptimizerAccess {
 public:
  // `shards` is null at stage 0. All must outlive this.
  OptimizerAccess(std::span<const GradientSlot> slots, ParameterShards* shards,
                  ReplicaChecker& checker, Session session, int zero_stage);

  // What an optimiser updates on this rank, of all and of one parameter. The second throws
  // UsageError if it is none of those that are trained.
  [[nodiscard]] std::vector<at::Tensor> shards() const;
  [[nodiscard]] std::vector<at::Tensor> shards_of(const at::Tensor& parameter) const;
  // See UpdateAccess.
  [[nodiscard]] std::string describe_shards() const;
  void check_saved_shards(const std::string* saved) const;

  // An optimiser of shards() has been made.
  void attach() { is_attached_ = true; }
  // The model is gone: its parameters are not to be touched any more.
  void detach_model() { has_model_ = false; }

  // Around an optimiser's step. The second is collective from stage 1 on: values are whole again.
  void begin_update();
  void end_update();
  void zero_grad();
  // Collective from stage 1 on.
  double clip_grad_norm(double max_norm);

  // An average has been published to the shards.
  void gradients_published() { has_gradients_ = true; }
  // Throws UsageError where a pass would overwrite gradients that no optimiser has used. What this
  // depends on is the same on all ranks.
  void refuse_unused_gradients() const;

 private:
  std::span<const GradientSlot> slots_;
  ParameterShards* shards_;
  ReplicaChecker& checker_;
  Session session_;
  int zero_stage_;
  bool is_attached_ = false;
  bool has_gradients_ = false;  // that wait for the optimiser
  bool has_model_ = true;
};

}  // namespace troika::detail
