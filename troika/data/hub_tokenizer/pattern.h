// Internal: what a text is searched for: a string, or a regular expression of PCRE2.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace troika::hub_tokenizer_plugin {

// Const access is thread safe.
class Pattern {
 public:
  // Compiles an expression over Unicode's characters. Throws std::runtime_error naming it.
  static Pattern expression(const std::string& expression);
  static Pattern literal(std::string text);

  // Calls `take` for each match in valid UTF-8, from left to right; none overlaps another.
  void each(std::string_view text,
            const std::function<void(std::size_t begin, std::size_t end)>& take) const;

 private:
  Pattern() = default;

  std::string literal_;
  std::shared_ptr<const void> code_;  // null: the literal
};

}  // namespace troika::hub_tokenizer_plugin
