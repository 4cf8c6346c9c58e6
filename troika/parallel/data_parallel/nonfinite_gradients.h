// Internal. Gradients of this rank that are not finite, found before they are averaged: behind the
// average every rank has them, and none knows whose they were.
#pragma once

#include <troika/base/failure.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/gradient_slot.h>

#include <cstddef>
#include <optional>
#include <span>

namespace troika::detail {

class NonfiniteGradients {
 public:
  using Policy = DataParallelOptions::OnNonfinite;

  // `slots` must outlive it. `rank` is this one.
  NonfiniteGradients(std::span<const GradientSlot> slots, Policy policy, int rank)
      : slots_(slots), policy_(policy), rank_(rank) {}

  // Forgets the average before.
  void begin() { found_.reset(); }
  // Looks at the gradients of a bucket, which are all there. With Policy::kWarn it says the first
  // that is not finite, once.
  void check(std::size_t bucket, const at::Tensor& gradients);
  // Returns whether all ranks are to throw, and what.
  [[nodiscard]] bool stops() const { return policy_ == Policy::kStop && found_.has_value(); }
  [[nodiscard]] Failure failure() const;

 private:
  std::span<const GradientSlot> slots_;
  Policy policy_;
  int rank_;
  bool has_warned_ = false;
  std::optional<std::size_t> found_;  // a slot of this average
};

}  // namespace troika::detail
