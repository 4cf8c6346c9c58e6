// Names of files that a file names: they must lead nowhere but beside it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace troika {

// Returns whether it is a name of letters, digits, '-', '_' and '.', and not a hidden one.
[[nodiscard]] inline bool is_plain_file_name(std::string_view name) {
  constexpr std::size_t kTooLong = 256;
  return !name.empty() && name.front() != '.' && name.size() < kTooLong &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

}  // namespace troika
