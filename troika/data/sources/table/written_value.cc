#include <troika/data/sources/table/arrow_library.h>
#include <troika/data/sources/table/written_value.h>
#include <troika/storage/keep_line.h>

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

}  // namespace

std::optional<std::string> written_value(const std::string& path, arrow_plugin::TextFormat format,
                                         std::int64_t row, const std::string& column) {
  format.types.insert(format.types.begin(), {column, ValueType::kText});
  std::string reason;
  const std::unique_ptr<arrow_plugin::File> file =
      arrow_library().open(path, format, keep_line(reason));
  const std::int64_t place = file ? text_column(*file, column) : -1;
  if (place < 0) return std::nullopt;
  std::optional<std::string> found;
  for (std::int64_t group = 0; group < file->groups(); row -= file->rows(group++)) {
    if (row >= file->rows(group)) continue;
    const auto take = [&](std::size_t, const Values& values) {
      const bool has_row = row >= values.first_row && row < values.first_row + values.rows;
      if (has_row && values.type == ValueType::kText) found = text_of_row(values, row);
    };
    (void)file->read(group, std::span(&place, 1), take, keep_line(reason));
    break;
  }
  return found;
}

}  // namespace troika
