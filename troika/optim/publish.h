// Writes the low-precision working copy of freshly updated masters, while they are in the cache.
#pragma once

#include <troika/param/parameter.h>

#include <cstdint>

namespace troika {

// Rounds elements [begin, begin + count) of the master to nearest even into the value, as
// at::Tensor::copy_ does. Nothing to do where they are the same memory. T is the master's type.
// Throws InternalError unless the value is bf16 or fp16.
template <typename T>
void publish_chunk(const Parameter& parameter, std::int64_t begin, std::int64_t count);

}  // namespace troika
