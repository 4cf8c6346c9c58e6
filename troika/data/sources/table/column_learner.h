// Internal: what has to be known of all rows before the first sample is made: the words of
// categories, the classes of labels, means and deviations. Every rank learns it from the same rows
// in the same order, and so learns the same.
#pragma once

#include <troika/data/sources/table/cell.h>
#include <troika/data/sources/table/column_plan.h>

namespace troika {

// The facts to learn: those that fix the sizes of tensors, or all.
enum class Lesson { kSizes, kAll };

// Reads the columns that need it once. Words and numbers are those of the training side; classes
// those of both. Throws DataError naming a bad value.
void learn_columns(TablePlan& plan, const TableFiles& files, const TableRows& rows, Lesson lesson);

// Returns what throws DataError for a bad value of a column. `hint` takes the place of that of the
// complaint, unless it is empty.
[[nodiscard]] Complain thrower_of_bad_values(const TableFiles& files, std::size_t group,
                                             const std::string& column, std::string_view hint = {});

}  // namespace troika
