// Internal: the classes of labels that are whole numbers.
#pragma once

#include <troika/data/sources/table/column_plan.h>

namespace troika {

// Reads the labels of both sides. Where these are not 0 to n - 1 they become the words of their
// column, and n its classes. A model that says how many classes it has takes numbers below that as
// they are, and as many others as words. Throws DataError naming a label that is not whole; with
// OnBadRow::kSkip it is left alone.
void learn_label_numbers(TablePlan& plan, const TableFiles& files, const TableRows& rows,
                         OnBadRow on_bad_row);

}  // namespace troika
