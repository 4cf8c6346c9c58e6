#include <troika/data/sources/table/arrow_library.h>
#include <troika/data/sources/table/written_value.h>
#include <troika/storage/first_line_into.h>

#include <memory>
#include <span>

namespace troika {
namespace {

using arrow_plugin::Values;
using arrow_plugin::ValueType;

// The place of a column of text; -1 where there is none.
std::int64_t text_column(const arrow_plugin::File& file, const std::string& name) {
  for (std::int64_t i = 0; i < file.columns(); ++i) {
    const arrow_plugin::Column column = file.column(i);
    if (column.name == name) return column.type == ValueType::kText ? i : -1;
  }
  return -1;
}

std::optional<std::string> text_of_row(const Values& values, std::int64_t row) {
  const auto place = static_cast<std::size_t>(row - values.first_row);
  if (!values.there.empty() && values.there[place] == 0) return std::nullopt;
  const auto begin = static_cast<std::size_t>(values.offsets[place]);
  return std::string(
      values.text.substr(begin, static_cast<std::size_t>(values.offsets[place + 1]) - begin));
}

// Reads the row of a column that `format` makes text; nothing where it does not.
std::optional<std::string> text_of_file(const std::string& path,
                                        const arrow_plugin::TextFormat& format, std::int64_t row,
                                        const std::string& column) {
  std::string reason;
  const std::unique_ptr<arrow_plugin::File> file =
      arrow_library().open(path, format, first_line_into(reason));
  const std::int64_t place = file ? text_column(*file, column) : -1;
  if (place < 0) return std::nullopt;
  std::optional<std::string> found;
  for (std::int64_t group = 0; group < file->groups(); row -= file->rows(group++)) {
    if (row >= file->rows(group)) continue;
    const auto take = [&](std::size_t, const Values& values) {
      const bool has_row = row >= values.first_row && row < values.first_row + values.rows;
      if (has_row && values.type == ValueType::kText) found = text_of_row(values, row);
    };
    (void)file->read(group, std::span(&place, 1), take, first_line_into(reason));
    break;
  }
  return found;
}

}  // namespace

std::optional<WrittenValue> written_value(const std::string& path,
                                          const arrow_plugin::TextFormat& format, std::int64_t row,
                                          const std::string& column) {
  arrow_plugin::TextFormat forced = format;
  forced.types.insert(forced.types.begin(), {column, ValueType::kText});
  if (auto text = text_of_file(path, forced, row, column)) return WrittenValue{*text, true};
  forced = format;
  forced.as_digits = {column};
  if (auto text = text_of_file(path, forced, row, column)) return WrittenValue{*text, false};
  return std::nullopt;
}

}  // namespace troika
