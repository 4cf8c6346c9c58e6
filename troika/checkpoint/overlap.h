// The elements that two parts of one tensor have in common, whatever the cuts.
#pragma once

#include <troika/param/state_dict.h>

#include <cstddef>
#include <cstdint>

namespace troika {

// Copies those elements from the memory of one part to that of the other. Elements are of
// `element_size` bytes in both. Returns their number. Touches no others.
std::int64_t copy_overlap(const ShardDescriptor& from, const std::byte* source,
                          const ShardDescriptor& to, std::byte* target, std::size_t element_size);

}  // namespace troika
