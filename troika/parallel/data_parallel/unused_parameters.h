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

  // `slots` must outlive this.
  UnusedParameters(std::span<const GradientSlot> slots, Session session, Policy policy);

  // Of this rank in this pass: none, and one more. Indices are those of slots.
  void clear() { unused_.clear(); }
  void add(std::size_t index) { unused_.push_back(index); }
  // Whether the policy refuses what is unused.
  [[nodiscard]] bool are_refused() const { return policy_ == Policy::kRefuse && !unused_.empty(); }
  // What is wrong with them; empty unless they are refused.
  [[nodiscard]] ValidationError validate() const;

  // Collective where they are allowed: starts to count the ranks that use each parameter. A rank
  // that is not `present` uses none.
  void start_count(bool present);
  void wait_for_count() const { counting_.wait(); }
  // On how many ranks each slot has a gradient; empty where nothing is counted.
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
