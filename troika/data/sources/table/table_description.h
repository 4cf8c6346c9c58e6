// Internal: what a run keeps of its table, as JSON: columns, statistics, words. Other tables are
// encoded by it, so that a number means to the model what it meant in training.
#pragma once

#include <troika/data/sources/table/column_plan.h>

#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Reads what TablePlan::describe() has returned, for a model that takes `sample`. Throws DataError
// where it is damaged, or not of this model.
[[nodiscard]] TablePlan read_description(std::string_view json, const SampleSpec& sample);

// Returns the names of the columns that were text in training. Where it is damaged there are none.
[[nodiscard]] std::vector<std::string> text_columns_of(std::string_view json);

// Returns the names of the columns that were dates or times in training, or whose parts were used.
// Where it is damaged there are none.
[[nodiscard]] std::vector<std::string> time_columns_of(std::string_view json);

// Finds the columns in the files of another table, by their names. Throws DataError naming a column
// that is missing, or of another type than in training. Dates and times may have another unit.
void find_described_columns(TablePlan& plan, const TableFiles& files);

}  // namespace troika
