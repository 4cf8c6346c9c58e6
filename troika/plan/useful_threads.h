// How many threads a rank should compute with.
#pragma once

#include <troika/recipe/recipe.h>

namespace troika {

// Returns the threads, at most `available`, that the matrix products of one microbatch keep busy.
// Threads wait for each other after every operation. For a small model that takes longer than the
// operation itself, and far longer where another process keeps one of the cores busy.
[[nodiscard]] int useful_threads(const Recipe& recipe, int available);

}  // namespace troika
