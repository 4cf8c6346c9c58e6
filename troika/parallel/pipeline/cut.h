// Where a row of units is cut into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troika {

// The first unit of each stage, and the number of units at the end: stages + 1 numbers, ascending,
// so that no stage is empty and the largest cost of a stage is as small as it can be; of such cuts
// the one whose costs are the most even (least sum of squares). `costs` by unit, in any unit of
// measure; at least as many as `stages`, which is at least 1. By dynamic programming, in
// O(units^2 stages).
[[nodiscard]] std::vector<int> cut_by_cost(std::span<const double> costs, int stages);

// The same numbers from the units that each stage is to have.
[[nodiscard]] std::vector<int> cut_by_hand(std::span<const std::int64_t> units_of_stage);

}  // namespace troika
