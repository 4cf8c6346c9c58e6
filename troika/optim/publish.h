// Writes the low-precision working weights of freshly updated masters, while they are in the cache.
#pragma once

#include <troika/param/arena.h>

#include <cstdint>

namespace troika {

// Rounds elements [offset, offset + count) of the shard's master to nearest even into its working
// weight, as at::Tensor::copy_ does. Nothing to do where they are the same memory. T is the
// master's type. Throws InternalError unless the working weight is bf16, fp16 or of the master's
// type.
template <typename T>
void publish_chunk(const LocalShard& shard, std::int64_t offset, std::int64_t count);

}  // namespace troika
