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
  // Gives an optimiser access to a model. `shards` is null at stage 0. All must outlive this.
  OptimizerAccess(std::span<const GradientSlot> slots, ParameterShards* shards,
                  ReplicaChecker& checker, Session session, int zero_stage);

  // Return the tensors that an optimiser updates on this rank, of all and of one parameter. The
  // second throws UsageError if the parameter is not trained.
  [[nodiscard]] std::vector<at::Tensor> shards() const;
  [[nodiscard]] std::vector<at::Tensor> shards_of(const at::Tensor& parameter) const;
  // Returns shards() with the parameters that they are of.
  [[nodiscard]] std::vector<ParameterShard> named_shards() const;
  // See UpdateAccess.
  [[nodiscard]] std::string describe_shards() const;
  void check_saved_shards(const std::string* saved) const;

  // Tells that an optimiser of shards() has been made.
  void attach() { is_attached_ = true; }
  // Tells that the model is gone: its parameters must not be touched any more.
  void detach_model() { has_model_ = false; }

  // Begin and end an optimiser's step. From stage 1 on end_update() is collective and makes values
  // whole again.
  void begin_update();
  void end_update();
  // Takes the place of both where the step is left out: its average counts as used.
  void skip_update();
  void zero_grad();
  // Scales gradients as ZeroRedundancyOptimizer::clip_grad_norm() does. Collective from stage 1 on.
  double clip_grad_norm(double max_norm);

  // Tells that an average has been published to the shards.
  void gradients_published() { has_gradients_ = true; }
  // Throws UsageError where a pass would overwrite gradients that no optimiser has used. The
  // outcome is the same on all ranks.
  void refuse_unused_gradients() const;

 private:
  void refuse_missing_model() const;

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
