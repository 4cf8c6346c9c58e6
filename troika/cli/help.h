// How the command's flags look in --help, and what their values must satisfy. Internal to this
// folder: it sees the parser.
#pragma once

#include <troika/config/key.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>
#include <string>

namespace troika {

// Returns a formatter for the outermost App. Set it before subcommands are added, as they take it
// over. It shows "--ranks N" without the parser's own notes; defaults stand behind the description.
[[nodiscard]] std::shared_ptr<CLI::FormatterBase> help_formatter();

// Refuses a number outside [low, high] with "7 is not between 1 and 5".
template <class Number>
[[nodiscard]] CLI::Validator between(Number low, Number high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    Number value{};
    // The conversion refuses what is no number at all.
    if (!CLI::detail::lexical_cast(text, value) || (value >= low && value <= high)) return "";
    std::ostringstream message;
    message << text << " is not between " << low << " and " << high;
    return message.str();
  };
  return CLI::Validator([check](std::string& text) { return check(text); }, "");
}

// Refuses a number below `low` with "0 is less than 1".
template <class Number>
[[nodiscard]] CLI::Validator at_least(Number low) {
  const auto check = [low](const std::string& text) -> std::string {
    Number value{};
    if (!CLI::detail::lexical_cast(text, value) || value >= low) return "";
    std::ostringstream message;
    message << text << " is less than " << low;
    return message.str();
  };
  return CLI::Validator([check](std::string& text) { return check(text); }, "");
}

// Refuses a number of seconds that no deadline can be set by, with "0 is not in (0, 10000000]": the
// range of the recipe's keys.
[[nodiscard]] inline CLI::Validator timeout_seconds() {
  const auto check = [](const std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value) || (value > 0 && value <= kLongestTimeout))
      return "";
    return text + " is not in (0, 10000000]";
  };
  return CLI::Validator([check](std::string& text) { return check(text); }, "");
}

}  // namespace troika
