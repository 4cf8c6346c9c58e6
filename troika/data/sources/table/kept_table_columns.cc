#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/cell.h>
#include <troika/data/sources/table/kept_table_columns.h>
#include <troika/data/sources/table/time_literal.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

// A duration is a number.
bool is_date_or_time(const TableColumn& column) {
  return is_temporal(column) && text_of_time(0, column.type_name).has_value();
}

KeptType kept_type_of(const TableColumn& column) {
  if (is_date_or_time(column)) return KeptType::kText;
  switch (column.type) {
    case ValueType::kInteger:
      return KeptType::kInteger;
    case ValueType::kNumber:
      return KeptType::kNumber;
    case ValueType::kBoolean:
    case ValueType::kText:
    case ValueType::kNothing:
      return KeptType::kText;
    case ValueType::kNumbers:
    case ValueType::kOther:
      break;
  }
  throw DataError("the column " + quote(column.name) + " is " + column.type_name +
                      "; --keep takes numbers, words and truth values",
                  "leave it out: `row` says where it stands in the table");
}

// Copies a value of a group.
void copy_value(const KeptValues& from, std::size_t row, KeptType type, KeptValues& to) {
  to.there.push_back(from.there[row]);
  if (type == KeptType::kText) to.texts.push_back(from.texts[row]);
  if (type == KeptType::kInteger) to.integers.push_back(from.integers[row]);
  if (type == KeptType::kNumber) to.numbers.push_back(from.numbers[row]);
}

}  // namespace

KeptTableColumns::KeptTableColumns(const TableFiles& files, std::span<const std::string> names)
    : files_(files), names_(names.begin(), names.end()), group_(files.groups().size()) {
  for (const std::string& name : names_) {
    files.check_everywhere(name);
    columns_.push_back({name, kept_type_of(files.column(name))});
  }
}

std::vector<KeptValues> KeptTableColumns::values(const at::Tensor& sample_ids) {
  std::vector<KeptValues> kept(columns_.size());
  const std::span<const RowGroup> groups = files_.groups();
  const auto* const ids = sample_ids.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < sample_ids.numel(); ++i) {
    const auto after = std::ranges::upper_bound(groups, ids[i], {}, &RowGroup::first_row);
    const auto group = static_cast<std::size_t>(after - groups.begin()) - 1;
    if (group != group_) read(group);
    const auto row = static_cast<std::size_t>(ids[i] - groups[group].first_row);
    for (std::size_t k = 0; k < columns_.size(); ++k) {
      copy_value(values_[k], row, columns_[k].type, kept[k]);
    }
  }
  return kept;
}

void KeptTableColumns::read(std::size_t group) {
  values_.assign(columns_.size(), {});
  files_.read(group, names_, [&](std::size_t column, const Values& values) {
    add(group, columns_[column], values, values_[column]);
  });
  group_ = group;
}

void KeptTableColumns::add(std::size_t group, const KeptColumn& column, const Values& values,
                           KeptValues& to) const {
  for (std::int64_t i = 0; i < values.rows; ++i) {
    const Cell cell(values, i);
    const bool there = values.type != ValueType::kNothing && cell.is_there();
    to.there.push_back(there ? 1 : 0);
    if (column.type == KeptType::kInteger) to.integers.push_back(there ? cell.integer() : 0);
    if (column.type == KeptType::kNumber) to.numbers.push_back(there ? cell.number() : 0);
    if (column.type != KeptType::kText) continue;
    std::string room;
    std::string word(there ? cell.word(room) : std::string_view());
    const TableColumn& read = files_.column(column.name);
    if (there && is_date_or_time(read)) {
      word = text_of_time(cell.integer(), read.type_name).value_or(word);
    }
    if (count_not_utf8(word) > 0) {
      throw DataError(files_.describe(group, values.first_row + i) + ": the column " +
                          quote(column.name) + " is " + quote(word) + ", which is not UTF-8",
                      "leave it out of --keep");
    }
    to.texts.push_back(word);
  }
}

}  // namespace troika
