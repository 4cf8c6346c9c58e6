#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/arrow_library.h>
#include <troika/data/sources/table/table_files.h>
#include <troika/data/sources/table/written_value.h>
#include <troika/storage/first_line_into.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

namespace troika {
namespace {

// The value of a folder's name where the column has none: Hive's word.
constexpr std::string_view kNoPartition = "__HIVE_DEFAULT_PARTITION__";

const TableColumn* find_column(std::span<const TableColumn> columns, std::string_view name) {
  const auto found = std::ranges::find(columns, name, &TableColumn::name);
  return found == columns.end() ? nullptr : &*found;
}

bool is_numeric(ValueType type) {
  return type == ValueType::kInteger || type == ValueType::kNumber;
}

// Whether values of a file can stand in a column of the table.
bool agree(const TableColumn& table, const TableColumn& file) {
  if (file.type == ValueType::kNothing) return true;
  if ((is_temporal(table) || is_temporal(file)) && table.type_name != file.type_name) return false;
  return file.width == table.width &&
         (file.type == table.type || (is_numeric(file.type) && is_numeric(table.type)));
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Folders write other characters as %3A.
std::string decoded(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* const digits = text.data() + i + 1;
    const bool escaped = text[i] == '%' && i + 2 < text.size() &&
                         std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
    result += escaped ? static_cast<char>(value) : text[i];
    if (escaped) i += 2;
  }
  return result;
}

// {"year": "2024"} of "events/year=2024/part-0.parquet".
std::map<std::string, std::string> partitions_of(std::string_view path) {
  std::map<std::string, std::string> partitions;
  for (std::size_t slash = path.find('/'); slash != std::string_view::npos;
       slash = path.find('/')) {
    const std::string_view folder = path.substr(0, slash);
    const std::size_t equals = folder.find('=');
    if (equals != std::string_view::npos && equals > 0) {
      partitions[decoded(folder.substr(0, equals))] = decoded(folder.substr(equals + 1));
    }
    path.remove_prefix(slash + 1);
  }
  return partitions;
}

}  // namespace

bool is_temporal(const TableColumn& column) {
  if (column.type != ValueType::kInteger) return false;
  return std::ranges::any_of(std::array{"date", "time", "duration"},
                             [&](const char* word) { return column.type_name.starts_with(word); });
}

TableFiles::TableFiles(std::vector<FoundFile> files, TextFormat format, TimeColumns times)
    : files_(std::move(files)), format_(std::move(format)), times_(std::move(times)) {
  for (std::size_t i = 0; i < files_.size(); ++i) add_file(i, open(i));
  read_again_as_words();
  if (groups_.empty()) {
    throw DataError("the table has no rows: " + shown_path(files_.front().path) +
                        (files_.size() > 1 ? " and all other files are" : " is") + " empty",
                    "check data.files");
  }
  merge_columns();
  if (columns_.empty()) {  // as JSON Lines of {}
    throw DataError("the table " + shown_path(files_.front().path) + " has no columns",
                    "a line of JSON Lines is an object with names and values, as {\"x\": 1}");
  }
  add_parts();
}

TableFiles::~TableFiles() = default;

TableFiles::Columns TableFiles::columns_of(const File& file) const {
  Columns columns;
  for (std::int64_t i = 0; i < file.columns(); ++i) {
    const arrow_plugin::Column each = file.column(i);
    TableColumn& column = columns.emplace_back();
    column = {std::string(each.name), each.type, std::string(each.type_name), each.width};
    const TimeText* const text = each.type == ValueType::kText ? times_.find(column.name) : nullptr;
    if (text == nullptr) continue;
    column.type = ValueType::kInteger;
    column.type_name = text->type_name();
  }
  return columns;
}

void TableFiles::add_file(std::size_t index, std::unique_ptr<File> file) {
  Columns columns = columns_of(*file);
  const auto known = std::ranges::find(schemas_, columns);
  schema_of_.push_back(static_cast<std::size_t>(known - schemas_.begin()));
  if (known == schemas_.end()) schemas_.push_back(std::move(columns));
  partitions_.push_back(partitions_of(files_[index].path));
  for (std::int64_t group = 0; group < file->groups(); ++group) {
    const std::int64_t rows = file->rows(group);
    const std::int64_t first = groups_.empty() ? 0 : this->rows();
    if (rows > 0) groups_.push_back({index, group, first, rows});
  }
  if (file->is_converted()) {
    converted_[index].file = std::move(file);
  } else {
    store_opened(index, std::move(file));
  }
}

// Whether the types of a column differ, and all would be text if CSV files were read so.
bool TableFiles::is_text_of_words(const std::string& column) const {
  const TableColumn* first = nullptr;
  bool differs = false, has_words = false;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const TableColumn* found = find_column(schemas_[schema_of_[i]], column);
    if (found == nullptr || found->type == ValueType::kNothing) continue;
    const bool is_text = found->type == ValueType::kText;
    if (!is_text && !converted_.contains(i)) return false;
    if (first == nullptr) first = found;
    differs = differs || !agree(*first, *found);
    has_words = has_words || is_text;
  }
  return differs && has_words;
}

void TableFiles::read_again_as_words() {
  if (schemas_.size() < 2) return;
  std::vector<std::string> words;
  for (const TableColumn& column : schemas_.front()) {
    if (is_text_of_words(column.name)) words.push_back(column.name);
  }
  if (words.empty()) return;
  for (const std::string& each : words) {
    format_.types.insert(format_.types.begin(), {each, ValueType::kText});
  }
  std::map<std::size_t, Converted> before;
  before.swap(converted_);
  const std::vector<Columns> schemas = std::exchange(schemas_, {});
  const std::vector<std::size_t> schema_of = std::exchange(schema_of_, {});
  partitions_.clear();
  groups_.clear();
  opened_.clear();
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const auto known = before.find(i);
    const bool stays =
        known != before.end() &&
        std::ranges::all_of(schemas[schema_of[i]], [&](const TableColumn& column) {
          return column.type == ValueType::kText || std::ranges::count(words, column.name) == 0;
        });
    add_file(i, stays ? std::move(known->second.file) : open(i));
  }
}

void TableFiles::merge_columns() {
  columns_ = schemas_.front();
  for (TableColumn& column : columns_) {
    for (const Columns& other : schemas_) {
      const TableColumn* same = find_column(other, column.name);
      if (same == nullptr) continue;
      const bool widens = column.type == ValueType::kNothing ||
                          (column.type == ValueType::kInteger && same->type == ValueType::kNumber);
      if (widens) column = *same;
    }
  }
  for (const auto& [name, value] : partitions_.front()) {
    if (find_column(columns_, name) != nullptr) continue;
    bool whole = true;
    for (const auto& each : partitions_) {
      const auto found = each.find(name);
      whole = whole && found != each.end() &&
              (found->second == kNoPartition || whole_number(found->second));
    }
    columns_.push_back({name, whole ? ValueType::kInteger : ValueType::kText,
                        whole ? "int64" : "string", 1, true});
  }
}

// A column of the files goes before a part of the same name.
void TableFiles::add_parts() {
  Columns parts;
  for (const TableColumn& column : columns_) {
    if (!is_temporal(column)) continue;
    for (std::size_t i = 0; i < names_of_parts().size(); ++i) {
      const auto part = static_cast<TimePart>(i);
      const std::string name = column.name + "." + std::string(names_of_parts()[i]);
      if (!has_part(column.type_name, part) || find_column(columns_, name) != nullptr) continue;
      TableColumn& added = parts.emplace_back();
      added = {name, ValueType::kInteger, "int64"};
      added.whole = column.name;
      added.whole_type = column.type_name;
      added.part = part;
    }
  }
  std::ranges::move(parts, std::back_inserter(columns_));
}

std::int64_t TableFiles::rows() const {
  return groups_.back().first_row + groups_.back().rows;
}

const TableColumn& TableFiles::column(std::string_view name) const {
  if (const TableColumn* found = find_column(columns_, name)) return *found;
  std::vector<std::string> names;
  for (const TableColumn& column : columns_) names.push_back(column.name);
  const auto near = nearest(name, names);
  throw DataError("there is no column " + quote(name) + " in " + shown_path(files_.front().path) +
                      (near ? "; did you mean " + quote(*near) + "?" : ""),
                  columns_hint());
}

std::string TableFiles::columns_hint() const {
  const std::string& first = columns_.front().name;
  const std::size_t other = first.find_first_of(";\t|");
  if (schemas_.front().size() == 1 && other != std::string::npos) {
    const std::string delimiter = first[other] == '\t' ? "\\t" : std::string(1, first[other]);
    return "its header is " + quote(first) + ": data.delimiter = \"" + delimiter +
           "\" takes it apart";
  }
  std::vector<std::string> names;
  for (const TableColumn& column : columns_) {  // spaces around a name are seen in quotes alone
    if (column.is_part()) continue;
    const bool is_plain = !column.name.starts_with(' ') && !column.name.ends_with(' ');
    names.push_back(is_plain ? column.name : quote(column.name));
  }
  return "its columns are " + join(names, ", ");
}

void TableFiles::check_everywhere(const std::string& name) const {
  const TableColumn& column = this->column(name);
  if (column.is_part()) return check_everywhere(column.whole);
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const Columns& schema = schemas_[schema_of_[i]];
    const TableColumn* found = find_column(schema, name);
    if (std::ranges::count(schema, name, &TableColumn::name) > 1) {
      throw DataError("two columns of " + shown_path(files_[i].path) + " are called " + quote(name),
                      "give each a name of its own, or leave it out of [data.columns]");
    }
    const bool there = column.is_partition ? partitions_[i].contains(name) : found != nullptr;
    if (!there) {
      throw DataError("the column " + quote(name) + " is not in " + shown_path(files_[i].path) +
                          ", but in " + shown_path(files_.front().path),
                      "all files of a table have the same columns");
    }
    if (!column.is_partition && !agree(column, *found)) {
      throw DataError("the column " + quote(name) + " is " + found->type_name + " in " +
                          shown_path(files_[i].path) + ", but " + column.type_name +
                          " in other files",
                      "all files of a table have the same types");
    }
  }
}

void TableFiles::read(std::size_t group, std::span<const std::string> columns,
                      const Take& take) const {
  const RowGroup& which = groups_[group];
  const auto converted = converted_.find(which.file);
  if (converted != converted_.end()) {
    auto& [file, mutex] = converted->second;
    const std::scoped_lock lock(mutex);
    return read_from(*file, which, columns, take);
  }
  std::unique_ptr<File> file = take_opened(which.file);
  read_from(*file, which, columns, take);
  store_opened(which.file, std::move(file));
}

void TableFiles::read_from(const File& file, const RowGroup& group,
                           std::span<const std::string> columns, const Take& take) const {
  const Columns& schema = schemas_[schema_of_[group.file]];
  std::vector<std::int64_t> places;
  std::vector<std::size_t> stored;  // the columns that the file holds
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const TableColumn& column = this->column(columns[i]);
    if (column.is_partition) {
      give_partition(group, i, column, take);
    } else {
      const std::string& held = column.is_part() ? column.whole : column.name;
      places.push_back(find_column(schema, held) - schema.data());
      stored.push_back(i);
    }
  }
  if (stored.empty()) return;
  check_unchanged(file, group);
  const Take numbered = [&](std::size_t column, const Values& values) {
    const TableColumn& held = schema[static_cast<std::size_t>(places[column])];
    give(group, this->column(columns[stored[column]]), held, values, stored[column], take);
  };
  std::string reason;
  if (!file.read(group.group, places, numbered, first_line_into(reason))) {
    const std::string& path = files_[group.file].path;
    const std::string what =
        "read row group " + std::to_string(group.group) + " of " + shown_path(path);
    if (is_remote(path)) throw_unread(what, reason);
    throw DataError("cannot " + what + ": " + reason,
                    "is the file whole? data files must not change while they are used");
  }
}

void TableFiles::give(const RowGroup& group, const TableColumn& asked, const TableColumn& stored,
                      const Values& values, std::size_t column, const Take& take) const {
  Values given = values;
  TimesOfTexts times;
  if (const TimeText* text = times_.find(stored.name);
      text != nullptr && values.type == ValueType::kText && stored.type == ValueType::kInteger) {
    times = times_of(values, *text);
    check_readable(group, stored, values, times, *text);
    given = {};
    given.type = ValueType::kInteger;
    given.first_row = values.first_row;
    given.rows = values.rows;
    given.there = times.there;
    given.integers = times.integers;
  }
  if (given.type != stored.type && given.type != ValueType::kNothing) fail_changed(group);
  std::vector<std::int64_t> parts;
  if (asked.is_part() && given.type == ValueType::kInteger) {
    for (const std::int64_t each : given.integers) {
      parts.push_back(part_of_time(each, stored.type_name, asked.part));
    }
    given.integers = parts;
  }
  take(column, given);
}

void TableFiles::check_readable(const RowGroup& group, const TableColumn& column,
                                const Values& values, const TimesOfTexts& times,
                                const TimeText& text) const {
  if (!times.unreadable || times_.skips_unreadable) return;
  const auto row = static_cast<std::size_t>(*times.unreadable);
  const auto begin = static_cast<std::size_t>(values.offsets[row]);
  const std::string word(
      values.text.substr(begin, static_cast<std::size_t>(values.offsets[row + 1]) - begin));
  throw DataError(describe(group, values.first_row + *times.unreadable) + ": the column " +
                      quote(column.name) + " is " + quote(word) + ", which is no time written as " +
                      (text.format() == kIsoTime ? "2024-01-05 12:30:00" : quote(text.format())),
                  "`format` of the column says how it is written; data.on_bad_row = \"skip\" takes "
                  "such texts for no value");
}

void TableFiles::check_unchanged(const File& file, const RowGroup& group) const {
  const bool is_same = group.group < file.groups() && file.rows(group.group) == group.rows &&
                       file.columns() == std::ssize(schemas_[schema_of_[group.file]]);
  if (!is_same) fail_changed(group);
}

void TableFiles::fail_changed(const RowGroup& group) const {
  throw DataError("the table " + shown_path(files_[group.file].path) +
                      " is not the one that the run has opened",
                  "data files must not change while they are used");
}

void TableFiles::give_partition(const RowGroup& group, std::size_t column, const TableColumn& which,
                                const Take& take) const {
  const std::string& word = partitions_[group.file].at(which.name);
  const auto rows = static_cast<std::size_t>(group.rows);
  Values values;
  values.type = which.type;
  values.rows = group.rows;
  std::vector<std::uint8_t> there;
  if (word == kNoPartition) there.assign(rows, 0);
  values.there = there;
  const std::vector<std::int64_t> integers(rows, whole_number(word).value_or(0));
  std::string text;
  std::vector<std::int64_t> offsets = {0};
  if (which.type == ValueType::kInteger) {
    values.integers = integers;
  } else {
    for (std::size_t i = 0; i < rows; ++i) {
      text += word;
      offsets.push_back(static_cast<std::int64_t>(text.size()));
    }
    values.text = text;
    values.offsets = offsets;
  }
  take(column, values);
}

std::string TableFiles::describe(std::size_t group, std::int64_t row) const {
  return describe(groups_[group], row);
}

std::string TableFiles::describe(const RowGroup& which, std::int64_t row) const {
  return shown_path(files_[which.file].path) + ", row group " + std::to_string(which.group) +
         ", row " + std::to_string(row);
}

std::optional<WrittenValue> TableFiles::written(std::size_t group, std::int64_t row,
                                                const std::string& column) const {
  const RowGroup& which = groups_[group];
  const auto first = std::ranges::find(groups_, which.file, &RowGroup::file);
  return written_value(files_[which.file].path, format_, which.first_row + row - first->first_row,
                       column);
}

std::unique_ptr<arrow_plugin::File> TableFiles::open(std::size_t file) const {
  std::string reason;
  std::unique_ptr<File> opened =
      arrow_library().open(files_[file].path, format_, first_line_into(reason));
  if (opened) return opened;
  const bool is_store =
      is_remote(files_[file].path) && reason.find("AWS Error") != std::string::npos;
  std::string hint =
      "tables are whole files of Parquet or Arrow IPC, and of text that is called *.csv, *.tsv or "
      "*.jsonl; data.format = \"csv\" reads other names";
  if (reason.find("UTF-16") != std::string::npos) {
    hint = "iconv -f UTF-16 -t UTF-8 OLD > NEW converts it";
  }
  if (reason.find("ZIP archive") != std::string::npos) hint = "unpack it first";
  if (reason.find("runcated") != std::string::npos) {
    hint = "the file is cut off: copy or download it again";
  }
  if (reason.find("CSV parse error: Row") != std::string::npos) {
    hint = "each row has as many values as the header, the first row: mend the file";
    if (!format_.names.empty()) hint = "each row has as many values as csv.names has names";
  }
  if (reason.find("CSV conversion error") != std::string::npos) {
    hint = "the column's type in [data.columns] does not allow it; csv.missing_words can name it";
  }
  const std::string what = "read the table " + shown_path(files_[file].path);
  if (is_store) throw_unread(what, reason);
  throw DataError("cannot " + what + ": " + reason, hint);
}

std::unique_ptr<arrow_plugin::File> TableFiles::take_opened(std::size_t file) const {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = std::ranges::find(opened_, file, &Opened::index);
    if (found != opened_.end()) {
      std::unique_ptr<File> opened = std::move(found->file);
      opened_.erase(found);
      return opened;
    }
  }
  std::unique_ptr<File> opened = open(file);
  if (columns_of(*opened) != schemas_[schema_of_[file]]) fail_changed({.file = file});
  return opened;
}

void TableFiles::store_opened(std::size_t file, std::unique_ptr<File> opened) const {
  const std::scoped_lock lock(mutex_);
  if (opened_.size() == kMostOpened) opened_.erase(opened_.begin());
  opened_.push_back({file, std::move(opened)});
}

}  // namespace troika
