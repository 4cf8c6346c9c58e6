// Sums of squares with a fixed order of additions.
#pragma once

#include <cstdint>

namespace troika {

// Returns the sum of the squares of `values`, in double precision. Element i goes to running sum i
// modulo 16, and those are added pairwise, so the bits depend on the values alone. T is float or
// double.
template <typename T>
[[nodiscard]] double square_sum(const T* values, std::int64_t count);

}  // namespace troika
