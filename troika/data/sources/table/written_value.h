// Internal: the digits that a table has in one row, for messages: a number of twenty digits is
// another one once it is read as a double.
#pragma once

#include <troika/data/arrow/plugin.h>

#include <cstdint>
#include <optional>
#include <string>

namespace troika {

struct WrittenValue {
  std::string text;
  bool is_csv = false;  // the column can be read as text by `type = "text"`
};

// Reads a file again, from its beginning to `row`, which counts over all of its groups. Returns
// nothing where there is no value, and where the column is of numbers without more digits.
[[nodiscard]] std::optional<WrittenValue> written_value(const std::string& path,
                                                        const arrow_plugin::TextFormat& format,
                                                        std::int64_t row,
                                                        const std::string& column);

}  // namespace troika
