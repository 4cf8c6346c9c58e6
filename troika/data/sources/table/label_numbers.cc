#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/config/toml_text.h>
#include <troika/data/sources/table/cell.h>
#include <troika/data/sources/table/column_encoder.h>
#include <troika/data/sources/table/column_learner.h>
#include <troika/data/sources/table/label_numbers.h>

#include <algorithm>
#include <optional>
#include <set>

namespace troika {
namespace {

bool has_number_of_class(const PlannedColumn& column) {
  const bool is_number =
      column.column.type == ValueType::kInteger || column.column.type == ValueType::kNumber;
  return is_number && column.options.as == ColumnUse::kLabel && column.label != LabelType::kValue;
}

// The whole numbers that rows of either side have; of answers nothing where one is not whole.
std::set<std::int64_t> numbers_of(const PlannedColumn& column, const TableFiles& files,
                                  const TableRows& rows, OnBadRow on_bad_row) {
  std::set<std::int64_t> numbers;
  const std::string& name = column.column.name;
  std::optional<std::int64_t> last;  // labels repeat
  for (std::size_t group = 0; group < files.groups().size(); ++group) {
    files.read(group, std::span(&name, 1), [&](std::size_t, const Values& values) {
      for (std::int64_t i = 0; i < values.rows; ++i) {
        const std::int64_t row = values.first_row + i;
        const RowSide side = rows.side_of(group, row);
        const Cell cell(values, i);
        if (side == RowSide::kNone || !cell.is_there()) continue;
        if (column.has_ignored_targets() && cell.is_ignored_target()) {
          if (on_bad_row == OnBadRow::kSkip || column.options.missing == Missing::kIgnore) continue;
          thrower_of_bad_values(files, group, name)(
              row, "is -100, which stands for an ignored target", kIgnoredTargetHint);
        }
        if (!cell.has_word()) {
          if (on_bad_row == OnBadRow::kSkip || column.label == LabelType::kAnswer) continue;
          thrower_of_bad_values(files, group, name)(
              row,
              cell.is_inexact()
                  ? problem_of_inexact(cell)
                  : "is " + toml_number(cell.number()) + "; a class is a whole number",
              kBadRowHint);
        }
        const auto number =
            cell.is_whole() ? cell.integer() : static_cast<std::int64_t>(cell.number());
        if (last == number) continue;
        last = number;
        numbers.insert(number);
      }
    });
  }
  return numbers;
}

// Whether all numbers are in [0, count).
bool are_below(const std::set<std::int64_t>& numbers, std::int64_t count) {
  return numbers.empty() || (*numbers.begin() >= 0 && *numbers.rbegin() < count);
}

}  // namespace

void learn_label_numbers(TablePlan& plan, const TableFiles& files, const TableRows& rows,
                         OnBadRow on_bad_row) {
  for (PlannedColumn& column : plan.columns) {
    if (!has_number_of_class(column)) continue;
    const std::set<std::int64_t> numbers = numbers_of(column, files, rows, on_bad_row);
    if (numbers.size() == 1) column.only_value = std::to_string(*numbers.begin());
    const bool is_class = column.label == LabelType::kClass;
    const std::int64_t count = std::ssize(numbers);
    const std::int64_t said = is_class ? plan.tensors[column.tensor].range : 2;
    const bool fits = are_below(numbers, said > 0 ? said : count);
    if (is_class && said == 0) column.classes = count;
    const bool is_name = is_temporal(column.column);  // days since 1970 may begin at 0 as well
    if ((fits && !is_name) || (said > 0 && count != said)) continue;
    if (is_class) column.classes = count;
    for (const std::int64_t each : numbers) column.words.push_back(std::to_string(each));
  }
}

}  // namespace troika
