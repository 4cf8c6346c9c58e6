// Internal: decides for each row, before anything is learned, whether it is used and on which side:
// data.filter, data.split_column and missing = "skip_row", then data.on_bad_row = "skip".
#pragma once

#include <troika/data/sources/table/column_plan.h>
#include <troika/data/sources/table/options.h>

#include <string>
#include <vector>

namespace troika {

// Marks the rows, reading only the columns that decide. Returns what to tell the user, one line
// each: how many rows are left out, and why. Throws DataError where a column does not go with its
// condition.
[[nodiscard]] std::vector<std::string> screen_rows(TableRows& rows, const TableFiles& files,
                                                   const TablePlan& plan,
                                                   const TableOptions& options);

// Leaves out the rows with a value that cannot be used, as far as that is known before anything but
// the numbers of classes is learned. Returns what to tell the user.
[[nodiscard]] std::vector<std::string> screen_values(TableRows& rows, const TableFiles& files,
                                                     const TablePlan& plan);

}  // namespace troika
