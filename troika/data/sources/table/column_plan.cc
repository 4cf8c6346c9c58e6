#include <fnmatch.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/cell.h>
#include <troika/data/sources/table/column_plan.h>
#include <troika/data/sources/table/time_literal.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>

namespace troika {
namespace {

bool is_glob(std::string_view name) {
  return name.find_first_of("*?[") != std::string_view::npos;
}

// Whether a glob with as = "ignore" finds a column, which goes before other globs.
bool is_left_out(const TableOptions& options, const std::string& column) {
  return std::ranges::any_of(options.columns, [&](const ColumnOptions& each) {
    return each.as == ColumnUse::kIgnore && is_glob(each.name) &&
           ::fnmatch(each.name.c_str(), column.c_str(), 0) == 0;
  });
}

// The columns that each table of [data.columns] stands for, in the order of the recipe, then of the
// file. A name that is written out goes before globs.
std::vector<std::pair<const ColumnOptions*, const TableColumn*>> matched(
    const TableFiles& files, const TableOptions& options) {
  std::vector<std::pair<const ColumnOptions*, const TableColumn*>> all;
  std::vector<bool> taken(files.columns().size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    taken[i] = files.columns()[i].is_part() || is_left_out(options, files.columns()[i].name);
  }
  const auto named = [&](std::string_view name) {
    return std::ranges::find(options.columns, name, &ColumnOptions::name) != options.columns.end();
  };
  const auto says_side = [&](std::string_view name) {
    return options.split_column != kNoColumn && name == options.split_column;
  };
  for (const ColumnOptions& each : options.columns) {
    if (each.as == ColumnUse::kIgnore) {  // a name is held to the file, so that a typo is found
      if (!is_glob(each.name)) (void)files.column(each.name);
      continue;
    }
    const std::size_t before = all.size();
    for (std::size_t i = 0; i < files.columns().size(); ++i) {
      const TableColumn& column = files.columns()[i];
      const bool by_glob = is_glob(each.name) && !column.is_partition && !taken[i] &&
                           !named(column.name) && !says_side(column.name) &&
                           ::fnmatch(each.name.c_str(), column.name.c_str(), 0) == 0;
      if (column.name != each.name && !by_glob) continue;
      taken[i] = true;
      all.emplace_back(&each, &column);
    }
    if (all.size() > before) continue;
    if (!is_glob(each.name)) (void)files.column(each.name);  // throws
    throw DataError("no column of " + shown_path(files.files().front().path) +
                        " that is not named otherwise matches " + quote(each.name),
                    files.columns_hint());
  }
  return all;
}

// Says which row of a text column is no number, where some are: it makes text of all.
std::string first_word(const TableFiles& files, const std::string& column) {
  bool has_numbers = false;
  std::string found;
  for (std::size_t group = 0; group < files.groups().size() && found.empty(); ++group) {
    files.read(group, std::span(&column, 1), [&](std::size_t, const Values& values) {
      for (std::int64_t i = 0; i < values.rows; ++i) {
        const Cell cell(values, i);
        if (!cell.is_there()) continue;
        std::string room;
        const std::string_view word = cell.word(room);
        double number = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
        const bool is_number =
            error != std::errc::invalid_argument && end == word.data() + word.size();
        has_numbers = has_numbers || is_number;
        if (is_number || !found.empty()) continue;
        found = files.describe(group, values.first_row + i) + " has " + quote(word);
      }
    });
  }
  return has_numbers ? found : "";
}

void check_type(const PlannedColumn& planned, const TableFiles& files) {
  if (planned.fits(planned.column.type)) return;
  std::string hint = "leave the column out";
  if (planned.column.type == ValueType::kText) {
    const std::string word = first_word(files, planned.column.name);
    hint = word.empty() ? "as = \"category\" reads words" : word + ", which is no number";
  }
  if (planned.column.type == ValueType::kNumbers) hint = "as = \"tensor\" reads lists of numbers";
  if (is_glob(planned.options.name)) hint += "; a column with a table of its own is not of a glob";
  throw DataError("the column " + quote(planned.column.name) + " of " +
                      shown_path(files.files().front().path) + " is " + planned.column.type_name +
                      "; as = \"" + std::string(name_of(planned.options.as)) + "\" expects " +
                      std::string(planned.expected()),
                  hint);
}

// A label that is a list is a tensor of numbers.
void take_list_of_label(PlannedColumn& planned, const TensorSpec& target) {
  ColumnOptions& options = planned.options;
  if (options.as != ColumnUse::kLabel || planned.column.type != ValueType::kNumbers) return;
  if (options.normalise != Normalise::kNone) {
    throw DataError("the column " + quote(planned.column.name) + " is " + planned.column.type_name +
                        "; normalise is for labels of one number",
                    "write lists of normalised numbers");
  }
  options.as = ColumnUse::kTensor;
  options.into = target.name;
}

std::size_t tensor_of(const ColumnOptions& column, const SampleSpec& sample) {
  const auto found =
      std::ranges::find(sample.tensors, name_of_tensor(column, sample), &TensorSpec::name);
  check(found != sample.tensors.end(), "a column into a tensor that the model does not have");
  return static_cast<std::size_t>(found - sample.tensors.begin());
}

// The width is known once the words are.
std::int64_t width_of(const PlannedColumn& column, const TensorSpec& tensor) {
  if (column.options.as == ColumnUse::kTensor || column.options.as == ColumnUse::kImage) {
    if (column.options.as == ColumnUse::kTensor && column.column.width > 0) {
      return column.column.width;
    }
    return std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1},
                           std::multiplies<>());
  }
  if (column.options.as == ColumnUse::kText) {
    return column.options.length > 0 || tensor.shape.empty() ? column.options.length
                                                             : tensor.shape.back();
  }
  if (column.options.as != ColumnUse::kCategory || !isFloatingType(tensor.dtype)) return 1;
  if (column.options.encode == Encode::kHash) return column.options.size;
  if (column.options.encode == Encode::kIndex) return 1;
  return std::ssize(column.words) + (column.has_own_word() ? 1 : 0);
}

}  // namespace

std::string_view name_of_tensor(const ColumnOptions& column, const SampleSpec& sample) {
  if (column.as == ColumnUse::kWeight) return kSampleWeights;
  if (column.into != kAutoInto) return column.into;
  return column.as == ColumnUse::kLabel ? sample.target().name : sample.input().name;
}

void open_text(PlannedColumn& column, const std::vector<TensorSpec>& tensors) {
  if (column.options.as != ColumnUse::kText) return;
  column.tokens = std::make_shared<TextTokens>(column.options);
  const TensorSpec& tensor = tensors[column.tensor];
  if (tensor.range > 0 && column.tokens->ids() > tensor.range) {
    throw DataError("the column " + quote(column.column.name) + " has token ids up to " +
                        std::to_string(column.tokens->ids() - 1) + ", and " + quote(tensor.name) +
                        " takes 0 to " + std::to_string(tensor.range - 1),
                    "raise the model's " +
                        (tensor.range_key.empty() ? "range" : std::string(tensor.range_key)));
  }
  const auto mask = std::ranges::find(tensors, tensor.name + kMaskSuffix, &TensorSpec::name);
  if (mask != tensors.end()) column.mask = static_cast<std::size_t>(mask - tensors.begin());
}

LabelType label_type(const TensorSpec& target) {
  if (!isFloatingType(target.dtype)) return LabelType::kClass;
  return target.range == 2 ? LabelType::kAnswer : LabelType::kValue;
}

bool PlannedColumn::has_words() const {
  if (options.as == ColumnUse::kCategory) return options.encode != Encode::kHash;
  if (options.as != ColumnUse::kLabel || label == LabelType::kValue) return false;
  return column.type == ValueType::kText || column.type == ValueType::kBoolean || !words.empty();
}

std::string_view PlannedColumn::expected() const {
  switch (options.as) {
    case ColumnUse::kNumber:
      return "numbers";
    case ColumnUse::kCategory:
      return "words, whole numbers or truth values";
    case ColumnUse::kLabel:
      return "classes or numbers";
    case ColumnUse::kTensor:
      return "lists of numbers";
    case ColumnUse::kImage:
      return "images as bytes, or their paths";
    case ColumnUse::kText:
      return "text";
    case ColumnUse::kWeight:
      return "numbers from 0 on";
    case ColumnUse::kIgnore:
      break;
  }
  return "";
}

bool PlannedColumn::fits(ValueType type) const {
  const bool whole = type == ValueType::kInteger || type == ValueType::kBoolean;
  const bool number = whole || type == ValueType::kNumber;
  if (type == ValueType::kNothing) return true;  // told row by row, or replaced
  switch (options.as) {
    case ColumnUse::kNumber:
    case ColumnUse::kWeight:
      return number;
    case ColumnUse::kCategory:
      return number || type == ValueType::kText;  // told row by row where it is not whole
    case ColumnUse::kLabel:
      return label == LabelType::kValue ? number : number || type == ValueType::kText;
    case ColumnUse::kTensor:
      return type == ValueType::kNumbers;
    case ColumnUse::kImage:
    case ColumnUse::kText:  // whole numbers: a path of digits, or a text as a CSV has it
      return type == ValueType::kText || type == ValueType::kInteger;
    case ColumnUse::kIgnore:
      break;
  }
  return false;
}

std::string PlannedColumn::shown_word(std::string_view word) const {
  if (!is_temporal(column)) return std::string(word);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::string(word);
  return text_of_time(number, column.type_name).value_or(std::string(word));
}

bool PlannedColumn::is_of_target(const std::vector<TensorSpec>& tensors) const {
  return options.as != ColumnUse::kWeight && tensors[tensor].role == TensorRole::kTarget;
}

bool PlannedColumn::has_replacement() const {
  const bool number = options.as == ColumnUse::kNumber;
  return options.missing == Missing::kMean || options.missing == Missing::kMedian ||
         options.missing == Missing::kConstant ||
         (number && options.missing == Missing::kMostFrequent);
}

bool PlannedColumn::needs_statistics() const {
  if (options.normalise != Normalise::kNone) return true;
  return has_replacement() && options.missing != Missing::kConstant;
}

std::vector<std::string> TablePlan::names() const {
  std::vector<std::string> names;
  for (const PlannedColumn& each : columns) names.push_back(each.column.name);
  return names;
}

std::int64_t TablePlan::width(std::size_t tensor) const {
  const std::vector<std::int64_t>& shape = tensors[tensor].shape;
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool TablePlan::holds_images(std::size_t tensor) const {
  return std::ranges::any_of(columns, [&](const PlannedColumn& column) {
    return column.tensor == tensor && column.options.as == ColumnUse::kImage;
  });
}

std::int64_t TablePlan::cached_width(std::size_t tensor) const {
  return holds_images(tensor) ? 0 : width(tensor);
}

std::int64_t TablePlan::sample_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bytes += cached_width(i) * (tensors[i].dtype == at::kFloat ? 4 : 8);
  }
  return bytes;
}

std::vector<std::string> TablePlan::target_names() const {
  std::vector<std::string> names;
  for (const PlannedColumn& each : columns) {
    if (each.options.as != ColumnUse::kLabel) continue;
    if (each.label == LabelType::kClass) {
      std::ranges::transform(each.words, std::back_inserter(names),
                             [&](const std::string& word) { return each.shown_word(word); });
      return names;
    }
    names.push_back(each.column.name);
  }
  return names;
}

std::vector<ValueScale> TablePlan::target_scales() const {
  std::vector<ValueScale> scales;
  bool normalised = false;
  const auto target = std::ranges::find(tensors, TensorRole::kTarget, &TensorSpec::role);
  const auto place = static_cast<std::size_t>(target - tensors.begin());
  for (const PlannedColumn& each : columns) {
    if (each.tensor != place) continue;
    normalised = normalised || each.options.normalise != Normalise::kNone;
    scales.insert(scales.end(), static_cast<std::size_t>(each.width), {each.shift, each.scale});
  }
  return normalised ? scales : std::vector<ValueScale>();
}

TablePlan plan_columns(const TableFiles& files, const TableOptions& options,
                       const SampleSpec& sample) {
  TablePlan plan;
  plan.tensors = sample.tensors;
  for (const auto& [column_options, column] : matched(files, options)) {
    PlannedColumn planned;
    planned.column = *column;
    planned.options = *column_options;
    if (planned.options.missing == Missing::kConstant) planned.mean = planned.options.fill;
    planned.tensor = tensor_of(*column_options, sample);
    planned.label = label_type(plan.tensors[planned.tensor]);
    take_list_of_label(planned, plan.tensors[planned.tensor]);
    files.check_everywhere(column->name);  // before values are read
    check_type(planned, files);
    open_text(planned, plan.tensors);
    plan.columns.push_back(std::move(planned));
  }
  return plan;
}

namespace {

// The size of a tensor was to follow from values that no row has.
[[noreturn]] void fail_nothing_learned(const TablePlan& plan, std::size_t tensor) {
  const auto column = std::ranges::find(plan.columns, tensor, &PlannedColumn::tensor);
  check(column != plan.columns.end(), "a tensor that no column goes into");
  throw DataError("the column " + quote(column->column.name) +
                      " has no value to learn the size of " + quote(plan.tensors[tensor].name) +
                      " from",
                  "no row of the training side has one, or only empty lists: leave the column out, "
                  "or check data.filter");
}

// The words of a category need numbers that the tensor has, and so do those not seen in training.
void check_range_of_words(const PlannedColumn& column, const TensorSpec& tensor) {
  const bool is_index = column.options.as == ColumnUse::kCategory && !isFloatingType(tensor.dtype);
  if (!is_index || tensor.range == 0) return;
  const bool hashed = column.options.encode == Encode::kHash;
  const std::int64_t others = column.has_own_word() ? 2 : 1;  // not seen, and without a value
  const std::int64_t needed = hashed ? column.options.size : std::ssize(column.words) + others;
  if (needed <= tensor.range) return;
  const std::string key = tensor.range_key.empty() ? "range" : std::string(tensor.range_key);
  throw DataError("the column " + quote(column.column.name) + " has " +
                      (hashed ? plural(needed, "bucket")
                              : plural(std::ssize(column.words), "word") +
                                    (others == 2 ? ", a number for no value," : ",") +
                                    " and a number for those not seen in training") +
                      "; " + quote(tensor.name) + " takes 0 to " + std::to_string(tensor.range - 1),
                  "set the model's " + key + " to " + std::to_string(needed) + " or more");
}

// Takes out the optional tensors that no column gives, which are among the last.
void leave_out_optional(TablePlan& plan, std::vector<std::int64_t>& widths) {
  for (std::size_t i = plan.tensors.size(); i-- > 0;) {
    if (!plan.tensors[i].optional || widths[i] > 0) continue;
    plan.tensors.erase(plan.tensors.begin() + static_cast<std::ptrdiff_t>(i));
    widths.erase(widths.begin() + static_cast<std::ptrdiff_t>(i));
    for (PlannedColumn& column : plan.columns) {
      if (column.tensor > i) --column.tensor;
      if (column.mask && *column.mask > i) --*column.mask;
    }
  }
}

}  // namespace

void lay_out_columns(TablePlan& plan) {
  std::vector<std::int64_t> widths(plan.tensors.size());
  for (PlannedColumn& column : plan.columns) {
    column.width = width_of(column, plan.tensors[column.tensor]);
    check_range_of_words(column, plan.tensors[column.tensor]);
    column.offset = widths[column.tensor];
    widths[column.tensor] += column.width;
    if (!column.mask) continue;
    column.mask_offset = widths[*column.mask];
    widths[*column.mask] += column.width;
  }
  leave_out_optional(plan, widths);
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    TensorSpec& tensor = plan.tensors[i];
    if (tensor.shape == std::vector<std::int64_t>{0}) {
      if (widths[i] == 0) fail_nothing_learned(plan, i);
      tensor.shape = {widths[i]};
    }
    if (tensor.role == TensorRole::kTarget && !isFloatingType(tensor.dtype) && tensor.range == 0) {
      tensor.range = std::ranges::max(plan.columns, {}, &PlannedColumn::classes).classes;
      if (tensor.range == 0) fail_nothing_learned(plan, i);
    }
    if (plan.width(i) == widths[i] || (tensor.shape.size() > 1 && plan.width(i) == 0)) continue;
    throw DataError("the columns of " + quote(tensor.name) + " give " +
                        plural(widths[i], "number") + " a sample, and the model takes " +
                        std::to_string(plan.width(i)),
                    "leave the model's size out, or change [data.columns]");
  }
}

}  // namespace troika
