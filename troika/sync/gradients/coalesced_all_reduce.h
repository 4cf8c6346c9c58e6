// All-reduces the gradients of some parameters in one buffer over a small group that holds partial
// sums of them, before the data axis sums the rest: over the tensor axis, and over the two pipeline
// stages that share a tied weight.
#pragma once

#include <troika/comm/group.h>
#include <troika/param/arena.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace troika {

class CoalescedAllReduce {
 public:
  // The slices that ranks hold of a parameter that has one: the same slice, or slices that may
  // overlap, which are summed where they lie in the whole.
  enum class Slices { kSame, kOverlapping };

  // Sums `parameters`, which must be the same on all ranks of `group`. Has no effect in a group of
  // one.
  CoalescedAllReduce(Group group, std::vector<const Parameter*> parameters, Slices slices);

  // Sums the gradients in place, and claims them. Collective, blocking. Throws DeadlineError,
  // PeerError.
  void run(std::string_view label, Seconds timeout);
  // Returns the bytes of the buffer, which the first run() makes.
  [[nodiscard]] std::int64_t bytes() const;

 private:
  // Returns the place of a parameter's gradient in `slice_buffer`, its slice of the buffer.
  [[nodiscard]] at::Tensor slice_view(const Parameter& parameter,
                                      const at::Tensor& slice_buffer) const;
  [[nodiscard]] std::int64_t elements_of(const Parameter& parameter) const;
  [[nodiscard]] bool overlaps(const Parameter& parameter) const;

  Group group_;
  std::vector<const Parameter*> parameters_;
  Slices slices_;
  at::Tensor buffer_;
};

}  // namespace troika
