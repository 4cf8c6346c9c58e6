#include <troika/base/text.h>
#include <troika/data/sources/table/text_format.h>

#include <algorithm>

namespace troika {
namespace {

// Texts and the paths of images are text, whatever they look like.
ValueType forced_type_of(const ColumnOptions& column) {
  switch (column.type) {
    case TextType::kText:
      return ValueType::kText;
    case TextType::kInteger:
      return ValueType::kInteger;
    case TextType::kNumber:
      return ValueType::kNumber;
    case TextType::kTimestamp:  // which times_of() reads
      return ValueType::kText;
    case TextType::kAuto:
      break;
  }
  if (column.format != kNoFormat) return ValueType::kText;
  const bool is_text = column.as == ColumnUse::kText || column.as == ColumnUse::kImage;
  return is_text ? ValueType::kText : ValueType::kNothing;
}

}  // namespace

FormatRefusal refusal_of_format(const TableOptions& options) {
  const std::string &delimiter = options.delimiter, &point = options.csv.decimal_point;
  if (delimiter != kAutoDelimiter && delimiter.size() != 1) {
    return {"data.delimiter", "delimiter: " + quote(delimiter) + " is not one character of ASCII",
            "as in delimiter = \";\", or \"\\t\" for a tab"};
  }
  if (point.size() != 1) {
    return {"data.csv", "csv.decimal_point: " + quote(point) + " is not one character of ASCII",
            "as in decimal_point = \",\""};
  }
  if (delimiter == point) {
    return {"data.csv", "csv.decimal_point: " + quote(point) + " separates the values too",
            "delimiter = \";\" is usual beside decimal commas"};
  }
  for (const std::string& name : options.csv.names) {
    if (std::ranges::count(options.csv.names, name) == 1) continue;
    return {"data.csv", "csv.names: two columns are called " + quote(name),
            "each column has a name of its own"};
  }
  return {};
}

TextFormat text_format_of(const TableOptions& options, std::span<const std::string> words) {
  TextFormat format;
  if (options.delimiter != kAutoDelimiter) format.delimiter = options.delimiter.front();
  format.any_name = options.format == TableFormat::kCsv;
  format.has_header = options.csv.header;
  format.names = options.csv.names;
  format.missing_words = options.csv.missing_words;
  format.usual_missing_words = options.csv.usual_missing_words;
  format.decimal_point = options.csv.decimal_point.front();
  for (const std::string& word : words) format.types.push_back({word, ValueType::kText});
  for (const ColumnOptions& column : options.columns) {
    format.types.push_back({column.name, forced_type_of(column)});
  }
  return format;
}

TimeColumns time_columns_of(const TableOptions& options, std::span<const std::string> times) {
  TimeColumns all;
  all.skips_unreadable = options.on_bad_row == OnBadRow::kSkip;
  for (const ColumnOptions& column : options.columns) {
    TimeColumn& added = all.columns.emplace_back();
    added.column = column.name;  // also of one that is no date, which goes before globs
    if (column.format != kNoFormat) {
      added.text.emplace(column.format);
    } else if (column.type == TextType::kTimestamp) {
      added.text.emplace(kIsoTime);
    }
  }
  for (const std::string& name : times) {
    if (all.find(name) != nullptr) continue;
    all.columns.insert(all.columns.begin(), {name, TimeText(kIsoTime)});
  }
  return all;
}

}  // namespace troika
