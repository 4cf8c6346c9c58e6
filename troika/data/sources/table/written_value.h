// Internal: what the text of a table has in one row, for messages: a number of twenty digits is
// another one once it is read as a number.
#pragma once

#include <troika/data/arrow/plugin.h>

#include <cstdint>
#include <optional>
#include <string>

namespace troika {

// Reads a CSV file again, from its beginning to `row`, which counts over all of its groups. Returns
// nothing where there is no value, and where the column cannot be read as text.
[[nodiscard]] std::optional<std::string> written_value(const std::string& path,
                                                       arrow_plugin::TextFormat format,
                                                       std::int64_t row, const std::string& column);

}  // namespace troika
