// A few rows of a table in which any two settings meet that meet anywhere in it: most faults need
// no more than two settings to show, and so few rows can be tried where all of them cannot.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace troika {

// `rows` are of one length, and column i holds the number of setting i. Returns positions of rows,
// ascending, such that any two numbers that stand together in a row stand together, in the same
// columns, in one of these: few of them, by a greedy choice that depends on nothing but `rows`.
[[nodiscard]] std::vector<std::size_t> cover_pairs(std::span<const std::vector<int>> rows);

}  // namespace troika
