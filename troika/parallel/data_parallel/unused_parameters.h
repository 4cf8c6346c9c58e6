// Internal. Parameters that get no gradient in a backward pass: an error on all ranks, or counted
// over the ranks, so that one keeps no gradient that no rank has used
// (DataParallelOptions::unused).
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/parallel/data_parallel/gradient_slot.h>
#include <troika/session/session.h>

#include <cstdint>
#include <span>
#include <vector>

namespace troika::detail {

class UnusedParameters {
 public:
  enum class Policy { kRefuse, kAllow };

  // Lists the unused parameters of a pass. `slots` must outlive this.
  UnusedParameters(std::span<const GradientSlot> slots, Session session, Policy policy);

  // Clear this rank's list of this pass, and add one to it. Indices are those of slots.
  void clear() { unused_.clear(); }
  void add(std::size_t index) { unused_.push_back(index); }
  // Returns whether there are unused parameters and the policy refuses them.
  [[nodiscard]] bool are_refused() const { return policy_ == Policy::kRefuse && !unused_.empty(); }
  // Returns the error to report; empty unless they are refused.
  [[nodiscard]] ValidationError validate() const;

  // Starts to count the ranks that use each parameter; collective if the policy allows unused ones.
  // A rank that is not `present` uses none.
  void start_count(bool present);
  void wait_for_count() const { counting_.wait(); }
  // Returns the number of ranks with a gradient for each slot; empty if they are not counted.
  [[nodiscard]] std::span<const std::int32_t> users() const;

 private:
  std::span<const GradientSlot> slots_;
  Session session_;
  Policy policy_;
  std::vector<std::size_t> unused_;
  at::Tensor users_;  // undefined where nothing is counted
  Work counting_;
};

}  // namespace troika::detail
