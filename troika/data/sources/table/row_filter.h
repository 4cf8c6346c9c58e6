// Internal: the conditions of data.filter, and the words of data.split_column.
#pragma once

#include <troika/data/sources/table/cell.h>
#include <troika/data/sources/table/options.h>
#include <troika/data/sources/table/table_rows.h>

#include <optional>
#include <string>

namespace troika {

// Says why a condition cannot be asked; empty where it can.
[[nodiscard]] std::string refusal_of(const Condition& condition);

// Returns the condition with dates and times in the unit of the column. Throws DataError where a
// column of this type cannot be compared with the condition's values.
[[nodiscard]] Condition condition_on(const Condition& condition, const TableColumn& column);

// Returns whether a row meets the condition. One without a value meets "is missing" alone.
[[nodiscard]] bool meets(const Condition& condition, const Cell& cell);

// Throws DataError where values of this column cannot name a side.
void check_split_column(const TableColumn& column);

// Returns the side that the value of a split column names: "train", "validation" and "test" in
// capitals or not, or 0 and 1. Anything else names none.
[[nodiscard]] RowSide named_side(const Cell& cell);

}  // namespace troika
