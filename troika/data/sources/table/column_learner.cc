#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/column_encoder.h>
#include <troika/data/sources/table/column_learner.h>
#include <troika/nn/microbatch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

namespace troika {
namespace {

// Mean and deviation in one pass: Welford, "Note on a method for calculating corrected sums of
// squares and products", 1962.
struct Moments {
  std::int64_t count = 0;
  double mean = 0, squares = 0, smallest = 0, largest = 0;

  void add(double value) {
    smallest = count == 0 ? value : std::min(smallest, value);
    largest = count == 0 ? value : std::max(largest, value);
    const double distance = value - mean;
    mean += distance / static_cast<double>(++count);
    squares += distance * (value - mean);
  }
  [[nodiscard]] double deviation() const {
    return count == 0 ? 0 : std::sqrt(squares / static_cast<double>(count));
  }
};

// Of an even count, the mean of the two in the middle; 0 of none.
double median(std::vector<double>& numbers) {
  if (numbers.empty()) return 0;
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::ranges::nth_element(numbers, middle);
  if (numbers.size() % 2 == 1) return *middle;
  return (*std::max_element(numbers.begin(), middle) + *middle) / 2;
}

// Whole numbers by value, not by their digits.
struct InOrder {
  bool numeric;
  bool operator()(const std::string& a, const std::string& b) const {
    return numeric ? std::stoll(a) < std::stoll(b) : a < b;
  }
};

// What one column learns.
class Learner {
 public:
  Learner(PlannedColumn& column, const TensorSpec& tensor, bool has_tensor_alone, Lesson lesson)
      : column_(&column),
        tensor_(&tensor),
        words_(column.has_words() && column.words.empty()),
        classes_(is_class(column, tensor) && tensor.range == 0),
        list_(column.options.as == ColumnUse::kTensor && column.column.width == 0 &&
              (tensor.shape == std::vector<std::int64_t>{0} || !has_tensor_alone)),
        numbers_(lesson == Lesson::kAll && column.needs_statistics()) {}

  [[nodiscard]] bool is_needed() const { return words_ || classes_ || list_ || numbers_; }

  void see(const Values& values, const std::vector<std::int64_t>& train,
           const std::vector<std::int64_t>& held_out, const Complain& complain) {
    const bool both = column_->options.as == ColumnUse::kLabel || classes_;
    for (std::int64_t i = 0; i < values.rows; ++i) {
      const auto row = static_cast<std::size_t>(values.first_row + i);
      if (train[row] < 0 && !(both && held_out[row] >= 0)) continue;
      const Cell cell(values, i);
      if (!cell.is_there()) continue;  // told, or replaced, when samples are made
      const std::string problem = problem_of(cell);
      if (!problem.empty()) return complain(values.first_row + i, problem, kBadRowHint);
      if (words_) see_word(cell);
      if (classes_) see_classes(cell);
      if (list_)
        column_->column.width =
            std::max<std::int64_t>(column_->column.width, std::ssize(cell.list()));
      if (numbers_ && train[row] >= 0) see_number(cell.number());
    }
  }

  void finish() {
    if (words_) finish_words();
    if (!numbers_) return;
    learn_replacement();
    const Normalise how = column_->options.normalise;
    if (how == Normalise::kNone) return;
    const bool standard = how == Normalise::kStandard;
    column_->shift = standard ? moments_.mean : moments_.smallest;
    const double spread = standard ? moments_.deviation() : moments_.largest - moments_.smallest;
    column_->scale = spread > 0 ? 1 / spread : 1;  // a constant becomes 0
  }

 private:
  // Returns whether its lists are of classes.
  static bool is_class(const PlannedColumn& column, const TensorSpec& tensor) {
    return column.options.as == ColumnUse::kTensor && tensor.role == TensorRole::kTarget &&
           !isFloatingType(tensor.dtype);
  }

  static bool counts(double number) {
    return !std::isnan(number) && number != static_cast<double>(kIgnoredTarget);
  }

  void see_classes(const Cell& cell) {
    for (const double number : cell.list()) {
      if (!counts(number)) continue;
      column_->classes = std::max(column_->classes, static_cast<std::int64_t>(number) + 1);
    }
  }

  void see_word(const Cell& cell) {
    std::string room;
    const std::string_view word = cell.word(room);
    if (const auto known = seen_.find(word); known != seen_.end()) {
      ++known->second;
      return;
    }
    const std::string& kept = kept_.emplace_back(std::make_unique<std::string>(word)).operator*();
    seen_.emplace(kept, 1);
  }

  void see_number(double number) {
    moments_.add(number);
    const Missing missing = column_->options.missing;
    if (missing == Missing::kMedian) all_.push_back(number);
    if (missing == Missing::kMostFrequent) ++counts_[number];
  }

  void learn_replacement() {
    const Missing missing = column_->options.missing;
    if (missing == Missing::kMean) column_->mean = moments_.mean;
    if (missing == Missing::kMedian) column_->mean = median(all_);
    if (missing == Missing::kMostFrequent && !counts_.empty()) {  // the smallest of several
      column_->mean = std::ranges::max_element(counts_, {}, [](const auto& each) {
                        return each.second;
                      })->first;
    }
  }

  [[nodiscard]] std::string problem_of(const Cell& cell) const {
    if (words_) return problem_of_word(cell, *column_);
    if (classes_) {
      for (const double number : cell.list()) {
        if (counts(number) && !problem_of_class(number).empty()) return problem_of_class(number);
      }
      return "";
    }
    return numbers_ ? problem_of_number(cell.number(), *tensor_) : "";
  }

  void finish_words() {
    if (column_->column.type == ValueType::kBoolean) {
      column_->words = {"false", "true"};
    } else {
      for (const auto& word : kept_) column_->words.push_back(*word);
      std::ranges::sort(column_->words, InOrder{column_->column.type == ValueType::kInteger ||
                                                column_->column.type == ValueType::kNumber});
    }
    if (column_->options.missing == Missing::kMostFrequent && !seen_.empty()) {
      column_->usual_word = *std::ranges::max_element(column_->words, {}, [&](const auto& word) {
        const auto found = seen_.find(word);
        return found == seen_.end() ? 0 : found->second;
      });
    }
    if (seen_.size() == 1) column_->only_value = *kept_.front();
    const auto count = std::ssize(column_->words);
    const std::int64_t most = column_->options.size;
    const std::string name = "the column " + quote(column_->column.name);
    if (most > 0 && count > most) {
      throw DataError(name + " has " + std::to_string(count) +
                          " words, more than its size = " + std::to_string(most),
                      "write a larger size, or encode = \"hash\"");
    }
    if (column_->options.as != ColumnUse::kLabel) return;
    if (column_->label == LabelType::kClass) column_->classes = count;
    if (column_->label == LabelType::kAnswer && count > 2) {
      throw DataError(name + " has " + std::to_string(count) + " words; an answer has two",
                      "loss = \"cross_entropy\" takes more classes than two");
    }
  }

  PlannedColumn* column_;
  const TensorSpec* tensor_;
  bool words_, classes_, list_, numbers_;
  Moments moments_;
  std::vector<std::unique_ptr<std::string>> kept_;
  std::unordered_map<std::string_view, std::int64_t> seen_;  // rows of each word
  std::vector<double> all_;                                  // where their median is wanted
  std::map<double, std::int64_t> counts_;                    // where the most frequent is
};

// Shows the digits of the file, not those of the number that they were read as.
[[noreturn]] void fail_inexact(const TableFiles& files, std::size_t group, std::int64_t row,
                               const std::string& column, const std::string& what) {
  const std::optional<WrittenValue> written = files.written(group, row, column);
  throw DataError(files.describe(group, row) + ": the column " + quote(column) + " " +
                      (written ? "is " + written->text + what.substr(what.find(',')) : what),
                  written && written->is_csv
                      ? "type = \"text\" in [data.columns] reads the column as it is written"
                      : "write the column as text, which keeps each digit");
}

}  // namespace

Complain thrower_of_bad_values(const TableFiles& files, std::size_t group,
                               const std::string& column, std::string_view hint) {
  return [&files, group, column, hint](std::int64_t row, const std::string& what,
                                       const std::string& usual_hint) {
    if (what.starts_with(kAboutNumber)) fail_inexact(files, group, row, column, what);
    throw DataError(files.describe(group, row) + ": the column " + quote(column) + " " + what,
                    hint.empty() ? usual_hint : std::string(hint));
  };
}

void learn_columns(TablePlan& plan, const TableFiles& files, const TableRows& rows, Lesson lesson) {
  std::vector<Learner> learners;
  std::vector<std::string> names;
  for (PlannedColumn& column : plan.columns) {
    const bool has_tensor_alone =
        std::ranges::count(plan.columns, column.tensor, &PlannedColumn::tensor) == 1;
    Learner learner(column, plan.tensors[column.tensor], has_tensor_alone, lesson);
    if (!learner.is_needed()) continue;
    learners.push_back(std::move(learner));
    names.push_back(column.column.name);
  }
  if (learners.empty()) return;
  for (std::size_t group = 0; group < files.groups().size(); ++group) {
    const std::vector<std::int64_t> train = rows.slots(group, Split::kTrain);
    const std::vector<std::int64_t> held_out = rows.slots(group, Split::kHeldOut);
    files.read(group, names, [&](std::size_t column, const Values& values) {
      learners[column].see(values, train, held_out,
                           thrower_of_bad_values(files, group, names[column]));
    });
  }
  for (Learner& learner : learners) learner.finish();
}

}  // namespace troika
