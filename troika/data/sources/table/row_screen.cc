#include <ATen/ATen.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/column_encoder.h>
#include <troika/data/sources/table/image_column.h>
#include <troika/data/sources/table/row_filter.h>
#include <troika/data/sources/table/row_screen.h>

#include <algorithm>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <utility>

namespace troika {
namespace {

// What is asked of the values of one column.
struct Question {
  std::string column;
  std::function<void(std::size_t group, const Values& values)> ask;
};

class Screen {
 public:
  Screen(TableRows& rows, const TableFiles& files) : rows_(rows), files_(files) {}

  void add_condition(const Condition& condition) {
    add(condition.name,
        [this, asked = resolved(condition)](std::size_t group, std::int64_t row, const Cell& cell) {
          if (!meets(asked, cell)) leave_out(group, row, filtered_);
        });
  }

  // Takes a condition of which a row has to meet one.
  void add_alternative(const Condition& condition) {
    has_alternatives_ = true;
    add(condition.name,
        [this, asked = resolved(condition)](std::size_t, std::int64_t row, const Cell& cell) {
          if (meets(asked, cell)) meets_one_[static_cast<std::size_t>(row)] = true;
        });
  }

  void add_sides(const std::string& column) {
    files_.check_everywhere(column);
    check_split_column(files_.column(column));
    add(column, [this](std::size_t group, std::int64_t row, const Cell& cell) {
      const RowSide side = named_side(cell);
      if (is_used(group, row)) rows_.mark(group, row, side);
      if (side == RowSide::kNone) ++sideless_;
    });
  }

  void add_skipped_where_missing(const std::string& column) {
    add(column, [this](std::size_t group, std::int64_t row, const Cell& cell) {
      if (!cell.is_there()) leave_out(group, row, missing_);
    });
  }

  // What has not been learned yet is not asked. A list has `length` numbers.
  void add_usable(PlannedColumn column, const TensorSpec& tensor, std::int64_t length) {
    if (column.options.as == ColumnUse::kTensor) column.width = length;
    columns_.push_back(std::move(column));
    const ColumnEncoder& encoder = encoders_.emplace_back(columns_.back(), tensor);
    const auto type = !isFloatingType(tensor.dtype) ? at::kLong : at::kDouble;
    const std::int64_t end = columns_.back().offset + columns_.back().width;
    const at::Tensor scratch = at::empty({1, std::max<std::int64_t>(1, end)}, type);
    const std::string name = columns_.back().column.name;
    questions_.push_back(
        {name, [this, &encoder, scratch, name](std::size_t group, const Values& values) {
           std::vector<std::int64_t> slots(static_cast<std::size_t>(values.first_row + values.rows),
                                           -1);
           for (std::int64_t row = values.first_row; row < values.first_row + values.rows; ++row) {
             if (is_used(group, row)) slots[static_cast<std::size_t>(row)] = 0;
           }
           encoder.encode(values, slots, scratch,
                          [&](std::int64_t row, const std::string& what, const std::string&) {
                            note_bad(group, row, name, what);
                          });
         }});
  }

  void add_images(std::unique_ptr<ImageColumn> images, const std::string& name) {
    const ImageColumn& column = *images_.emplace_back(std::move(images));
    questions_.push_back({name, [this, &column, name](std::size_t group, const Values& values) {
                            for (std::int64_t i = 0; i < values.rows; ++i) {
                              const std::int64_t row = values.first_row + i;
                              if (!is_used(group, row)) continue;
                              const std::string problem = column.check(Cell(values, i), group);
                              if (!problem.empty()) note_bad(group, row, name, problem);
                            }
                          }});
  }

  // Asks what has been added so far.
  void run() {
    if (questions_.empty()) return;
    std::vector<std::string> names;
    for (const Question& each : questions_) names.push_back(each.column);
    for (std::size_t group = 0; group < files_.groups().size(); ++group) {
      meets_one_.assign(static_cast<std::size_t>(files_.groups()[group].rows), false);
      files_.read(group, names, [&](std::size_t column, const Values& values) {
        questions_[column].ask(group, values);
      });
      for (std::size_t row = 0; has_alternatives_ && row < meets_one_.size(); ++row) {
        if (!meets_one_[row]) leave_out(group, static_cast<std::int64_t>(row), filtered_);
      }
    }
    rows_.count();
    questions_.clear();
    has_alternatives_ = false;
  }

  // Returns the length that most of the lists of a column have that are left, the larger of two.
  [[nodiscard]] std::int64_t usual_length(const std::string& column) const {
    std::map<std::int64_t, std::int64_t> counts;
    for (std::size_t group = 0; group < files_.groups().size(); ++group) {
      files_.read(group, std::span(&column, 1), [&](std::size_t, const Values& values) {
        for (std::int64_t i = 0; i < values.rows; ++i) {
          const Cell cell(values, i);
          if (is_used(group, values.first_row + i) && cell.is_there()) {
            ++counts[std::ssize(cell.list())];
          }
        }
      });
    }
    std::pair<std::int64_t, std::int64_t> usual;
    for (const auto& each : counts) {
      if (each.second >= usual.second) usual = each;
    }
    return usual.first;
  }

  [[nodiscard]] std::vector<std::string> told() const {
    std::vector<std::string> told;
    if (sideless_ > 0)
      told.push_back(plural(sideless_, "row") + " left out: split_column names no side");
    if (missing_ > 0)
      told.push_back(plural(missing_, "row") +
                     " left out: no value in a column with missing = \"skip_row\"");
    if (bad_ > 0) told.push_back(plural(bad_, "bad row") + " left out, the first at " + first_bad_);
    return told;
  }

 private:
  [[nodiscard]] Condition resolved(const Condition& condition) const {
    files_.check_everywhere(condition.name);
    return condition_on(condition, files_.column(condition.name));
  }
  template <class Ask>
  void add(const std::string& column, const Ask& ask) {
    questions_.push_back({column, [this, ask](std::size_t group, const Values& values) {
                            for (std::int64_t i = 0; i < values.rows; ++i) {
                              ask(group, values.first_row + i, Cell(values, i));
                            }
                          }});
  }
  [[nodiscard]] bool is_used(std::size_t group, std::int64_t row) const {
    return rows_.side_of(group, row) != RowSide::kNone;
  }
  void note_bad(std::size_t group, std::int64_t row, const std::string& column,
                const std::string& what) {
    if (bad_ == 0) {
      first_bad_ = files_.describe(group, row) + ": the column " + quote(column) + " " + what;
    }
    leave_out(group, row, bad_);
  }
  void leave_out(std::size_t group, std::int64_t row, std::int64_t& count) {
    if (!is_used(group, row)) return;
    rows_.mark(group, row, RowSide::kNone);
    ++count;
  }

  TableRows& rows_;
  const TableFiles& files_;
  std::vector<Question> questions_;
  bool has_alternatives_ = false;
  std::vector<bool> meets_one_;  // of each row of a group, whether it meets an alternative
  std::list<PlannedColumn> columns_;
  std::list<ColumnEncoder> encoders_;
  std::vector<std::unique_ptr<ImageColumn>> images_;
  std::int64_t filtered_ = 0, sideless_ = 0, missing_ = 0, bad_ = 0;
  std::string first_bad_;
};

// Returns how long the lists of a column are to be.
std::int64_t length_of(const PlannedColumn& column, const TablePlan& plan, const Screen& screen) {
  if (column.options.as != ColumnUse::kTensor) return 0;
  if (column.column.width > 0) return column.column.width;
  const bool alone = std::ranges::count(plan.columns, column.tensor, &PlannedColumn::tensor) == 1;
  const std::int64_t width = plan.width(column.tensor);
  return alone && width > 0 ? width : screen.usual_length(column.column.name);
}

}  // namespace

std::vector<std::string> screen_rows(TableRows& rows, const TableFiles& files,
                                     const TablePlan& plan, const TableOptions& options) {
  Screen screen(rows, files);
  for (const Condition& condition : options.filter) screen.add_condition(condition);
  for (const Condition& condition : options.filter_any) screen.add_alternative(condition);
  if (options.split_column != kNoColumn) screen.add_sides(options.split_column);
  for (const PlannedColumn& column : plan.columns) {
    if (column.options.missing == Missing::kSkipRow) {
      screen.add_skipped_where_missing(column.column.name);
    }
  }
  screen.run();
  return screen.told();
}

std::vector<std::string> screen_values(TableRows& rows, const TableFiles& files,
                                       const TablePlan& plan) {
  Screen screen(rows, files);
  for (std::size_t i = 0; i < plan.columns.size(); ++i) {
    const PlannedColumn& column = plan.columns[i];
    if (column.options.as == ColumnUse::kImage) {
      screen.add_images(std::make_unique<ImageColumn>(plan, i, files, 0), column.column.name);
    } else {
      screen.add_usable(column, plan.tensors[column.tensor], length_of(column, plan, screen));
    }
  }
  screen.run();
  return screen.told();
}

}  // namespace troika
