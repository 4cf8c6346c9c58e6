#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/row_filter.h>
#include <troika/data/sources/table/time_literal.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <compare>

namespace troika {
namespace {

constexpr auto kRelations = std::to_array<std::string_view>(
    {"=", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "is", "is not"});
constexpr const char* kMissing = "missing";

bool asks_for_missing(std::string_view relation) {
  return relation == "is" || relation == "is not";
}

bool takes_list(std::string_view relation) {
  return relation == "in" || relation == "not in";
}

// Compares a value with one of the condition's; of types that go together.
std::partial_ordering compare(const Cell& cell, const Literal& literal) {
  if (const auto* text = std::get_if<std::string>(&literal)) {
    std::string room;
    return cell.word(room) <=> std::string_view(*text);
  }
  if (const auto* truth = std::get_if<bool>(&literal)) {
    return cell.number() <=> static_cast<double>(*truth);
  }
  if (const auto* whole = std::get_if<std::int64_t>(&literal);
      whole != nullptr && cell.is_whole()) {
    return cell.integer() <=> *whole;
  }
  return std::visit(
      [&](const auto& held) -> std::partial_ordering {
        if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(held)>>) {
          return cell.number() <=> static_cast<double>(held);
        }
        return std::partial_ordering::unordered;
      },
      literal);
}

// Whether a literal is true, false, 1 or 0.
bool is_truth(const Literal& literal) {
  if (const auto* whole = std::get_if<std::int64_t>(&literal)) return *whole == 0 || *whole == 1;
  return std::holds_alternative<bool>(literal);
}

bool goes_with(const Literal& literal, ValueType type) {
  if (std::holds_alternative<std::string>(literal)) return type == ValueType::kText;
  if (type == ValueType::kBoolean) return is_truth(literal);
  const bool number = type == ValueType::kInteger || type == ValueType::kNumber;
  return number && !std::holds_alternative<bool>(literal);
}

}  // namespace

std::string refusal_of(const Condition& condition) {
  if (std::ranges::count(kRelations, condition.relation) == 0) {
    return "filter: " + quote(condition.relation) + " is not one of " + join(kRelations, ", ");
  }
  if (takes_list(condition.relation) != condition.is_list) {
    return "filter: " + quote(condition.relation) +
           (condition.is_list ? " takes one value, not a list" : " takes a list of values");
  }
  const bool is_missing =
      !condition.values.empty() && condition.values.front() == Literal(kMissing);
  if (asks_for_missing(condition.relation) && !is_missing) {
    return "filter: " + quote(condition.relation) + " takes the word \"missing\" alone";
  }
  return "";
}

Condition condition_on(const Condition& condition, const TableColumn& column) {
  Condition resolved = condition;
  if (asks_for_missing(condition.relation)) return resolved;
  for (Literal& literal : resolved.values) {
    const auto* text = std::get_if<std::string>(&literal);
    if (text != nullptr && is_temporal(column)) {
      const std::optional<std::int64_t> time = time_in_unit(*text, column.type_name);
      if (time) literal = *time;
    }
    if (goes_with(literal, column.type) || column.type == ValueType::kNothing) continue;
    throw DataError(
        "filter compares the column " + quote(column.name) + ", which is " + column.type_name +
            ", with " + (text != nullptr ? quote(*text) : "another type of value"),
        is_temporal(column)
            ? "as \"2024-01-05\", of a timestamp \"2024-01-05 12:00:00\" too, of a time of day "
              "\"12:00\"; or a whole number in the unit of the type"
            : "text goes with text, numbers with numbers, and true, false, 1 or 0 with booleans");
  }
  return resolved;
}

bool meets(const Condition& condition, const Cell& cell) {
  const std::string& relation = condition.relation;
  if (asks_for_missing(relation)) return cell.is_there() == (relation == "is not");
  if (!cell.is_there()) return false;
  if (takes_list(relation)) {
    const bool found = std::ranges::any_of(condition.values, [&](const Literal& each) {
      return compare(cell, each) == std::partial_ordering::equivalent;
    });
    return found == (relation == "in");
  }
  const std::partial_ordering order = compare(cell, condition.values.front());
  if (relation == "=" || relation == "==") return order == 0;
  if (relation == "!=") return order != 0;
  if (relation == "<") return order < 0;
  if (relation == "<=") return order <= 0;
  return relation == ">" ? order > 0 : order >= 0;
}

void check_split_column(const TableColumn& column) {
  if (column.type != ValueType::kNumbers && column.type != ValueType::kOther) return;
  throw DataError("the column " + quote(column.name) + " is " + column.type_name +
                      "; split_column expects words, numbers or truth values",
                  "as train, validation and test, or 0 and 1");
}

RowSide named_side(const Cell& cell) {
  if (!cell.is_there()) return RowSide::kNone;
  if (cell.is_number()) {  // as pandas writes 0 and 1 beside missing values
    if (cell.number() == 0) return RowSide::kTrain;
    return cell.number() == 1 ? RowSide::kHeldOut : RowSide::kNone;
  }
  std::string room;
  std::string word(cell.word(room));
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  if (word == "train" || word == "training" || word == "0" || word == "false")
    return RowSide::kTrain;
  for (const std::string_view held_out : {"validation", "valid", "val", "held_out", "1", "true"}) {
    if (word == held_out) return RowSide::kHeldOut;
  }
  return word == "test" ? RowSide::kTest : RowSide::kNone;
}

}  // namespace troika
