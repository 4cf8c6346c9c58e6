// Internal: waits for many answers of a store at once.
#pragma once

#include <troika/base/function_ref.h>

#include <cstdint>

namespace troika {

// Calls `read` for each number of [0, count), some of them at a time on threads of their own, since
// what they do is to wait. Throws what the first of them in order throws.
void run_overlapped(std::int64_t count, FunctionRef<void(std::int64_t)> read);

}  // namespace troika
