// Internal. ZeRO 1 and 2 for a module of the user's own: the parts of its parameters that this
// rank's optimiser updates, as tensors for torch::optim, and the gathering of values after its
// step.
#pragma once

#include <troika/parallel/data/gradient_buckets.h>
#include <troika/session/session.h>

#include <cstdint>
#include <span>
#include <vector>

namespace troika::detail {

class ParameterShards {
 public:
  // Moves the parameters' values into those of the buckets. Slots and buckets must outlive it.
  ParameterShards(std::span<GradientSlot> slots, std::span<Bucket> buckets, Session session);

  // The parts that this rank updates of a parameter, by its index among the slots: leaves without
  // memory of their own.
  [[nodiscard]] std::vector<at::Tensor> parts_of(std::size_t slot) const;
  // Sets the parts' gradients to the averages, but for slots that nobody has used (`used`, of each
  // slot; empty: all are), and takes those of the parameters away.
  void hand_out(std::span<const std::int32_t> used);
  // The sum of the squares of the parts' gradients.
  [[nodiscard]] double sum_of_squares() const;
  void scale_gradients(double factor);
  // Collective: own parts have been written to; returns when values are whole. Counts as a write to
  // every parameter.
  void gather();
  // A parameter that has got other memory (torch::load) gives its values and is in the buckets
  // again.
  static void adopt_values(GradientSlot& slot);

 private:
  struct Part {
    std::size_t slot;
    at::Tensor values, gradient;
  };
  std::span<GradientSlot> slots_;
  std::span<Bucket> buckets_;
  Session session_;
  std::vector<Part> parts_;
};

}  // namespace troika::detail
