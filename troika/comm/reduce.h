// The arithmetic of a reduction: several members' values, reduced in ascending order of members.
#pragma once

#include <troika/comm/group.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace troika {

// Sets output[i] = inputs[0][i] op inputs[1][i] op ..., one after the other. fp16 and bf16 are
// reduced in fp32 and rounded once; integer sums wrap around. `output` may be one of the inputs.
// Takes the dtypes that groups carry, and runs in the calling thread alone.
void reduce_in_rank_order(at::ScalarType dtype, ReduceOp op,
                          std::span<const std::byte* const> inputs, std::byte* output,
                          std::int64_t count);

}  // namespace troika
