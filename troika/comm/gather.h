// Gathers tensors of different lengths from the members of a group.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>

#include <cstdint>
#include <vector>

namespace troika {

// The elements that the members of a group gave, in the order of the members.
struct GatheredElements {
  at::Tensor elements;               // [sum(counts)]
  std::vector<std::int64_t> counts;  // of each member
};

// Collective: gathers the elements of `own` from each member, which may have any number of them,
// all of one dtype.
[[nodiscard]] GatheredElements gather_elements(const Group& group, const at::Tensor& own,
                                               const Call& call);

}  // namespace troika
