// Where a row of units is cut into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troika {

// Returns the first unit of each stage, and the number of units at the end: stages + 1 numbers,
// ascending. No stage is empty, and the cost of the most expensive stage is minimal. Among such
// cuts the costs are the most even (least sum of squares). `costs` is by unit, in any unit of
// measure. It has at least as many entries as `stages`, which is at least 1. Uses dynamic
// programming, in O(units^2 stages).
[[nodiscard]] std::vector<int> cut_by_cost(std::span<const double> costs, int stages);

// Returns the same numbers for a given number of units in each stage.
[[nodiscard]] std::vector<int> cut_by_hand(std::span<const std::int64_t> units_of_stage);

}  // namespace troika
