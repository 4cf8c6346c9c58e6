// Internal. A trained parameter of a module, and the place of its gradient among those that ranks
// reduce together.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/parallel/data_parallel/replica_agreement.h>
#include <troika/param/named_tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troika::detail {

// One parameter that is trained. Tied parameters share one slot, under the first of their names.
struct GradientSlot {
  std::string name;
  at::Tensor parameter;
  at::ScalarType dtype;
  at::Device device;
  std::vector<std::int64_t> sizes;  // of the parameter when it was taken in
  // The strides that AccumulateGrad gave a gradient then: the parameter's where they are dense,
  // else row-major. They stay the same on all ranks, even if the parameter's change on some.
  std::vector<std::int64_t> strides;
  // The place of the gradient: the index of its bucket, and the elements before it there.
  std::size_t bucket = 0;
  std::int64_t offset = 0;
  at::Tensor view;   // that place; undefined at ZeRO stage 2 while its bucket has no memory
  at::Tensor value;  // the same place among values; undefined at stage 0

  [[nodiscard]] std::int64_t bytes() const {
    return parameter.numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
  }
};

// Says why a DataParallel cannot train a parameter; empty if it can.
[[nodiscard]] ValidationError validate_trained(const NamedTensor& parameter);

// Makes a slot, without a place, of each parameter that requires a gradient.
[[nodiscard]] std::vector<GradientSlot> make_slots(std::span<const NamedTensor> parameters);

// Returns "parameter 'fc.weight'".
[[nodiscard]] std::string title_of(const GradientSlot& slot);
// Returns "parameters 'a', 'b' and 3 others".
[[nodiscard]] std::string title_of(std::span<const GradientSlot> slots,
                                   std::span<const std::size_t> indices);

// Moves a gradient that autograd has put elsewhere (the first after zero_grad()) to the slot's
// view. Throws UsageError if it is sparse, or has a graph.
void move_gradient_to_view(GradientSlot& slot);

}  // namespace troika::detail
