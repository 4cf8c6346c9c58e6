// Internal: how the recipe says that the text of files is read.
#pragma once

#include <troika/data/sources/table/options.h>
#include <troika/data/sources/table/table_files.h>

#include <span>
#include <string>

namespace troika {

struct FormatRefusal {
  std::string key;  // "data.delimiter"
  std::string message, hint;
};
// Says why CSV files cannot be read so; the message is empty where they can.
[[nodiscard]] FormatRefusal refusal_of_format(const TableOptions& options);

// Returns how text is read. `words` are columns that a model has learned as text: digits in them
// stay as they are written.
[[nodiscard]] TextFormat text_format_of(const TableOptions& options,
                                        std::span<const std::string> words = {});

// Returns the columns whose text is dates or times. `times` are columns that a model has learned as
// such: text is read as "iso" there, where the recipe does not say how it is written.
[[nodiscard]] TimeColumns time_columns_of(const TableOptions& options,
                                          std::span<const std::string> times = {});

}  // namespace troika
