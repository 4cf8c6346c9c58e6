// Why a group was broken, as its members tell each other. The root cause reaches the rank that
// reports it together with what to do about it.
#pragma once

#include <string>
#include <string_view>

namespace troika {

struct AbortReason {
  std::string message;  // one line
  std::string hint;     // one line, or empty

  // Both in one string, as it travels; `from` takes them apart. A string without a second line is a
  // reason without a hint.
  [[nodiscard]] std::string text() const { return hint.empty() ? message : message + "\n" + hint; }
  [[nodiscard]] static AbortReason from(std::string_view text) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return {std::string(text), ""};
    return {std::string(text.substr(0, end)), std::string(text.substr(end + 1))};
  }
};

}  // namespace troika
