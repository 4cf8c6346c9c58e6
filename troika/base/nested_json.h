// Internal: JSON of files that others wrote. A level of nesting is one byte of text and takes some
// eighty of memory, so a file of brackets alone could use up a machine's.
#pragma once

#include <troika/base/error.h>

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace troika {

// Parses a text. Throws DataError where it is nested deeper than `deepest` levels, and
// nlohmann::json::parse_error where it is no JSON.
[[nodiscard]] inline nlohmann::json parse_nested_json(std::string_view text, int deepest) {
  const auto check_depth = [deepest](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth <= deepest) return true;
    throw DataError("it is nested too deeply: " + std::to_string(deepest) + " levels are the most");
  };
  return nlohmann::json::parse(text, check_depth);
}

}  // namespace troika
