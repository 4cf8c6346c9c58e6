// Tables for the terminal: columns as wide as their widest cell, two spaces apart, and no spaces
// at the ends of lines.
#pragma once

#include <string>
#include <vector>

namespace troika {

using TextRows = std::vector<std::vector<std::string>>;

enum class Align {
  kLeft,
  kNumbers  // the first column to the left, the others to the right
};

// Returns a line for each row, the first included. Rows may be of different lengths.
[[nodiscard]] std::string text_table(const TextRows& rows, Align align = Align::kLeft);

}  // namespace troika
