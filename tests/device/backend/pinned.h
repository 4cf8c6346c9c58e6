// Pinned host memory: what a copy may read or write while the host does something else.
#pragma once

#include <c10/core/Allocator.h>

namespace troika::test {

[[nodiscard]] c10::Allocator& pinned_memory();
[[nodiscard]] bool is_pinned_address(const void* address);

}  // namespace troika::test
