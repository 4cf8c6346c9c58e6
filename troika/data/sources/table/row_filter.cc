#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/row_filter.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <compare>

namespace troika {
namespace {

constexpr auto kRelations =
    std::to_array<std::string_view>({"=", "==", "!=", "<", "<=", ">", ">=", "in", "not in"});

bool takes_list(std::string_view relation) {
  return relation == "in" || relation == "not in";
}

// Compares a value with one of the condition's; of types that go together.
std::partial_ordering compare(const Cell& cell, const Literal& literal) {
  if (const auto* text = std::get_if<std::string>(&literal)) {
    std::string room;
    return cell.word(room) <=> std::string_view(*text);
  }
  if (const auto* truth = std::get_if<bool>(&literal))
    return cell.integer() <=> std::int64_t{*truth};
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

bool goes_with(const Literal& literal, ValueType type) {
  if (std::holds_alternative<std::string>(literal)) return type == ValueType::kText;
  if (std::holds_alternative<bool>(literal)) return type == ValueType::kBoolean;
  return type == ValueType::kInteger || type == ValueType::kNumber;
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
  return "";
}

void check_condition(const Condition& condition, const TableColumn& column) {
  for (const Literal& literal : condition.values) {
    if (goes_with(literal, column.type) || column.type == ValueType::kNothing) continue;
    throw DataError(
        "filter compares the column " + quote(column.name) + ", which is " + column.type_name +
            ", with another type of value",
        is_temporal(column)
            ? "dates and times are whole numbers, in the unit of their type: date32 "
              "counts days since 1970, timestamp[us] microseconds"
            : "text goes with text, numbers with numbers, and true or false with booleans");
  }
}

bool meets(const Condition& condition, const Cell& cell) {
  if (!cell.is_there()) return false;
  const std::string& relation = condition.relation;
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
