// Internal: which columns a table gives to which tensor, in words. A glob may have found an id, or
// the answer itself, which the user sees here before the first step.
#pragma once

#include <troika/data/sources/table/column_plan.h>

#include <string>
#include <vector>

namespace troika {

// Returns a line for each tensor: "features [5]: amount, land (3 words), day.weekday".
[[nodiscard]] std::vector<std::string> contents_of(const TablePlan& plan);

}  // namespace troika
