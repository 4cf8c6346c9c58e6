// Internal: calls a function for each row of logits, in LibTorch's threads and with the widest
// vectors. No row's result may depend on another's.
#pragma once

#include <ATen/Parallel.h>
#include <troika/ops/cpu/widest_vectors.h>

#include <algorithm>
#include <cstdint>

namespace troika::ops {

// Calls `function(begin, end)` for ranges of `rows` rows, each range in one thread.
template <typename Function>
void for_ranges_of_rows(std::int64_t rows, std::int64_t classes, const Function& function) {
  constexpr std::int64_t kElements = std::int64_t{1} << 15;  // that are worth another thread
  const std::int64_t fewest = kElements / std::max<std::int64_t>(1, classes);
  at::parallel_for(0, rows, std::max<std::int64_t>(1, fewest), function);
}

// Calls `function(row)` for the rows [begin, end).
template <typename Function>
void for_rows(std::int64_t begin, std::int64_t end, const Function& function) {
  vectorized_widely([&] {
    for (std::int64_t row = begin; row < end; ++row) function(row);
  });
}

}  // namespace troika::ops
