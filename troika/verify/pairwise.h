// Pairwise testing: a few rows of a table that contain every pair of settings that any row has.
// Most faults need no more than two settings to show, and few rows can be tried where all cannot.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace troika {

// Returns positions of few rows that contain every pair of numbers of `rows`, ascending. `rows` are
// of one length, and column i holds the number of setting i. Any two numbers that stand together in
// a row stand together, in the same columns, in one of the rows returned. The choice is greedy and
// depends only on `rows`.
[[nodiscard]] std::vector<std::size_t> pairwise_subset(std::span<const std::vector<int>> rows);

}  // namespace troika
