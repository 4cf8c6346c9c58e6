#include <troika/config/component.h>
#include <troika/config/key.h>

namespace troika {
namespace {

std::string number_text(double value) {
  // Ends of ranges are small whole numbers.
  return std::to_string(static_cast<std::int64_t>(value));
}

}  // namespace

std::string IntegerRange::describe() const {
  if (max == IntegerRange{}.max) return std::to_string(min) + " or more";
  return std::to_string(min) + " to " + std::to_string(max);
}

bool NumberRange::contains(double value) const {
  const bool above = lower == End::kClosed ? value >= min : value > min;
  const bool below = upper == End::kClosed ? value <= max : value < max;
  return above && below;
}

std::string NumberRange::describe() const {
  if (max == NumberRange{}.max) {
    return lower == End::kClosed ? number_text(min) + " or more" : "more than " + number_text(min);
  }
  return (lower == End::kClosed ? "[" : "(") + number_text(min) + ", " + number_text(max) +
         (upper == End::kClosed ? "]" : ")");
}

std::string type_name(const Spec& spec) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"integer", "integer or \"auto\"", "number", "number of seconds", "boolean", "string",
       "string", "string", "string", "list of integers", "list of numbers", "list of two numbers",
       "list of strings", "number or \"auto\"", "list of tables", "list of [NAME, RELATION, VALUE]",
       "table"});
  static_assert(kNames.size() == std::variant_size_v<Spec>);
  const auto* tables = std::get_if<TablesSpec>(&spec);
  if (tables != nullptr && tables->named()) return "table of tables";
  return std::string(kNames[spec.index()]);
}

std::string describe_range(const Spec& spec) {
  return std::visit(
      [](const auto& typed) -> std::string {
        if constexpr (requires {
                        typed.range;
                        typed.at.read(nullptr).begin();
                      }) {
          return "each " + typed.range.describe();
        } else if constexpr (requires { typed.range; }) {
          return typed.range.describe();
        } else {
          return "";
        }
      },
      spec);
}

std::vector<std::string_view> allowed_words(const Spec& spec) {
  std::vector<std::string_view> words;
  if (const auto* choice = std::get_if<ChoiceSpec>(&spec)) {
    for (std::size_t i = 0; i < choice->names.size(); ++i) {
      if ((choice->allowed >> i & 1U) != 0) words.push_back(choice->names[i]);
    }
  } else if (const auto* word = std::get_if<WordSpec>(&spec)) {
    words = word->names();
  } else if (const auto* kinds = std::get_if<KindSpec>(&spec)) {
    for (const Component* kind : kinds->all()) words.push_back(kind->name());
  }
  return words;
}

}  // namespace troika
