// Internal: reads single values of a column, and says what is wrong with one.
#pragma once

#include <troika/data/sources/table/table_files.h>
#include <troika/nn/microbatch.h>

#include <cmath>
#include <functional>
#include <string>
#include <string_view>

namespace troika {

// Hears of a value that cannot be used: its row in the group, what is wrong, and a hint.
using Complain =
    std::function<void(std::int64_t row, const std::string& what, const std::string& hint)>;

// The hint of a value that only its row can be blamed for.
inline constexpr const char* kBadRowHint = "data.on_bad_row = \"skip\" leaves such rows out";

// Begins what is wrong with a number that is_inexact(): thrower_of_bad_values() puts the digits of
// the file in its place, where it has more.
inline constexpr std::string_view kAboutNumber = "is about ";

inline constexpr const char* kIgnoredTargetHint =
    "missing = \"ignore\" leaves such targets out of the loss, and data.filter such rows";

// The value of one row of a column.
class Cell {
 public:
  Cell(const Values& values, std::int64_t index)
      : values_(values), index_(static_cast<std::size_t>(index)) {}

  // Returns false for null, and for NaN.
  [[nodiscard]] bool is_there() const {
    if (!values_.there.empty() && values_.there[index_] == 0) return false;
    return values_.type != ValueType::kNumber || !std::isnan(values_.numbers[index_]);
  }
  [[nodiscard]] bool is_number() const { return values_.type == ValueType::kNumber; }
  [[nodiscard]] bool is_whole() const { return !values_.integers.empty(); }
  [[nodiscard]] std::int64_t integer() const { return values_.integers[index_]; }
  [[nodiscard]] double number() const {
    return is_whole() ? static_cast<double>(integer()) : values_.numbers[index_];
  }
  // Returns whether it has a word: a number has one where it is whole, and exact as a double.
  [[nodiscard]] bool has_word() const {
    return !is_number() || (number() == std::floor(number()) && !is_inexact());
  }
  // Returns whether it is a number of so many digits that a double has another one.
  [[nodiscard]] bool is_inexact() const {
    constexpr double kMostExact = 9007199254740992;  // 2^53
    return is_number() && std::isfinite(number()) && std::abs(number()) > kMostExact;
  }
  // Returns a word for text, a whole number, or a truth value. `room` may hold it.
  [[nodiscard]] std::string_view word(std::string& room) const {
    if (values_.type == ValueType::kText) {
      const std::int64_t begin = values_.offsets[index_];
      return values_.text.substr(static_cast<std::size_t>(begin),
                                 static_cast<std::size_t>(values_.offsets[index_ + 1] - begin));
    }
    if (values_.type == ValueType::kBoolean) return integer() != 0 ? "true" : "false";
    room = std::to_string(is_whole() ? integer() : static_cast<std::int64_t>(number()));
    return room;
  }
  // Returns whether it is the whole number that stands for an ignored target in a list.
  [[nodiscard]] bool is_ignored_target() const {
    return (is_number() || is_whole()) && number() == static_cast<double>(kIgnoredTarget);
  }
  // Returns whether its word is the path of a struct that has no bytes.
  [[nodiscard]] bool is_path() const {
    return !values_.paths.empty() && values_.paths[index_] != 0;
  }
  // Returns the numbers of a list. NaN stands for an element without a value.
  [[nodiscard]] std::span<const double> list() const {
    const std::int64_t begin = values_.offsets[index_];
    return values_.numbers.subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(values_.offsets[index_ + 1] - begin));
  }

 private:
  const Values& values_;
  std::size_t index_;
};

}  // namespace troika
