// Pairwise testing: a few rows of a table that contain every pair of settings that any row has.
// Most faults need no more than two settings to show, and few rows can be tried where all cannot.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace troika {

// `rows` are of one length, and column i holds the number of setting i. Returns positions of rows,
// ascending, such that any two numbers that stand together in a row stand together, in the same
// columns, in one of these: few of them, by a greedy choice that depends on nothing but `rows`.
[[nodiscard]] std::vector<std::size_t> pairwise_subset(std::span<const std::vector<int>> rows);

}  // namespace troika
