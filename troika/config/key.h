// A key of a recipe: its name, what it may hold, its meaning, and where its value lies in the
// options struct of the component that declares it. Reading, writing, the printed reference, shell
// completion and the "did you mean" of errors all walk tables of these, so a key is one member of a
// struct and one line of its component's table.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace troika {

class Component;
class Origins;

// A value that a key takes as it is written.
using Literal = std::variant<bool, std::int64_t, double, std::string>;

// What is asked of something that has a name: ["amount", ">", 0], ["land", "in", ["DE", "FR"]].
struct Condition {
  std::string name;
  std::string relation;
  std::vector<Literal> values;
  bool is_list = false;  // the values were written as a list

  bool operator==(const Condition&) const = default;
};

// Returns the words of an enumeration, in the order of its enumerators. Each component specialises
// it for the enumerations that its keys hold.
template <class Enum>
[[nodiscard]] std::span<const std::string_view> names_of();

// Returns the word of an enumerator: name_of(Precision::kBFloat16) is "bf16".
template <class Enum>
requires std::is_enum_v<Enum>
[[nodiscard]] std::string_view name_of(Enum value) {
  return names_of<Enum>()[static_cast<std::size_t>(value)];
}

// Finds a value of type T in an options struct.
template <class T>
struct Accessor {
  T& (*edit)(void* options);
  const T& (*read)(const void* options);
};

struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();

  [[nodiscard]] bool contains(std::int64_t value) const { return value >= min && value <= max; }
  [[nodiscard]] std::string describe() const;  // "1 to 64", "0 or more"
};

// An interval of finite numbers; an open end does not belong to it.
struct NumberRange {
  enum class End { kClosed, kOpen };
  double min = 0;
  double max = std::numeric_limits<double>::infinity();
  End lower = End::kClosed;
  End upper = End::kOpen;

  [[nodiscard]] bool contains(double value) const;
  [[nodiscard]] std::string describe() const;  // "[0, 1)", "more than 0"
};

// Ranges that several components use. Upper limits keep products of two sizes within 64 bits.
namespace ranges {
inline constexpr IntegerRange kAny{0};
inline constexpr IntegerRange kPositive{1};
inline constexpr IntegerRange kSize{1, 10'000'000};
inline constexpr IntegerRange kCount{1, 1'000'000'000};
inline constexpr IntegerRange kCountOrOff{0, 1'000'000'000};
inline constexpr NumberRange kNonNegative{};
inline constexpr NumberRange kAboveZero{.lower = NumberRange::End::kOpen};
inline constexpr NumberRange kBelowOne{0, 1};
}  // namespace ranges

// The longest time-out in seconds, some 115 days; the shortest is anything above 0. It also holds
// for SessionOptions and flags.
inline constexpr double kLongestTimeout = 1e7;

// The types of value that a key may hold, each with its range.
struct IntegerSpec {
  Accessor<std::int64_t> at;
  IntegerRange range;
};
struct AutoIntegerSpec {  // "auto" (absent) or an integer
  Accessor<std::optional<std::int64_t>> at;
  IntegerRange range;
  std::string_view largest = {};  // a word for the largest integer that there is: "all"
};
struct NumberSpec {
  Accessor<double> at;
  NumberRange range;
};
struct AutoNumberSpec {  // "auto" (absent) or a number
  Accessor<std::optional<double>> at;
  NumberRange range;
};
struct SecondsSpec {  // a number, written without a fraction where it has none
  Accessor<double> at;
  NumberRange range;
};
struct BoolSpec {
  Accessor<bool> at;
};
struct TextSpec {
  Accessor<std::string> at;
};
struct ChoiceSpec {                         // an enumerator
  std::span<const std::string_view> names;  // in the order of the enumerators
  std::uint32_t allowed;                    // a bit for each of them
  int (*read)(const void* options);
  void (*write)(void* options, int value);
};
struct WordSpec {  // a word of a list that components extend, such as the pipeline schedules
  Accessor<std::string> at;
  std::vector<std::string_view> (*names)();
};
struct KindSpec {  // the component that a section's `kind` names; of the whole document
  std::vector<const Component*> (*all)();
  const Component* (*read)(const void* document);
  void (*write)(void* document, const Component& kind);  // with its default options
};
struct IntegerListSpec {
  Accessor<std::vector<std::int64_t>> at;
  IntegerRange range;
};
struct NumberListSpec {
  Accessor<std::vector<double>> at;
  NumberRange range;
};
struct NumberPairSpec {
  Accessor<std::array<double, 2>> at;
  NumberRange range;
};
struct TextListSpec {
  Accessor<std::vector<std::string>> at;
};
struct ConditionListSpec {
  Accessor<std::vector<Condition>> at;
};
struct Key;
struct TablesSpec {  // a list of tables, each with keys of its own
  std::vector<Key> (*keys)();
  std::size_t (*size)(const void* options);
  const void* (*read)(const void* options, std::size_t index);
  void (*clear)(void* options);
  void* (*append)(void* options);
  // Set where tables have names instead of numbers: inputs = { x = {...}, y = {...} }. Their order
  // is that of the text.
  std::string& (*name_of)(void* table) = nullptr;

  [[nodiscard]] bool named() const { return name_of != nullptr; }
  [[nodiscard]] std::string name(const void* options, std::size_t index) const {
    return name_of(const_cast<void*>(read(options, index)));
  }
};

struct OptionsSpec {  // a table whose keys another component declares, which other keys choose
  // Finds that component, once the keys beside this one are read. Throws UsageError.
  void (*choose)(void* options, const Origins& origins);
  const Component* (*component)(const void* options);  // null before
  // Return the struct that its keys' accessors take.
  void* (*edit)(void* options);
  const void* (*read)(const void* options);
};

using Spec =
    std::variant<IntegerSpec, AutoIntegerSpec, NumberSpec, SecondsSpec, BoolSpec, TextSpec,
                 ChoiceSpec, WordSpec, KindSpec, IntegerListSpec, NumberListSpec, NumberPairSpec,
                 TextListSpec, AutoNumberSpec, TablesSpec, ConditionListSpec, OptionsSpec>;

struct Key {
  std::string_view name;
  Spec spec;
  std::string_view meaning;
  bool is_required = false;
  std::string_view derived = {};  // where a default follows from other keys: how

  // Return a refined copy of the key, for tables of keys.
  [[nodiscard]] constexpr Key required() const {
    Key key = *this;
    key.is_required = true;
    return key;
  }
  [[nodiscard]] constexpr Key derived_from(std::string_view how) const {
    Key key = *this;
    key.derived = how;
    return key;
  }
};

// Returns "integer", "list of strings": for messages and documents.
[[nodiscard]] std::string type_name(const Spec& spec);

// Describes the values that are allowed; empty where every value of the type is.
[[nodiscard]] std::string describe_range(const Spec& spec);

// Returns the words that a choice, a list of components or a kind allows; empty for other types.
[[nodiscard]] std::vector<std::string_view> allowed_words(const Spec& spec);

// Writes the lines of a table of keys: KeysOf<SgdOptions>::number<&SgdOptions::momentum>(...).
template <class Struct>
struct KeysOf {
  template <auto kMember>
  using Type = std::remove_reference_t<decltype(std::declval<Struct&>().*kMember)>;

  template <auto kMember>
  static constexpr auto member() {
    using T = Type<kMember>;
    return Accessor<T>{[](void* options) -> T& { return static_cast<Struct*>(options)->*kMember; },
                       [](const void* options) -> const T& {
                         return static_cast<const Struct*>(options)->*kMember;
                       }};
  }

  template <auto kMember>
  static constexpr Key integer(std::string_view name, IntegerRange range, std::string_view doc) {
    return {name, IntegerSpec{member<kMember>(), range}, doc};
  }
  template <auto kMember>
  static constexpr Key auto_integer(std::string_view name, IntegerRange range, std::string_view doc,
                                    std::string_view largest = {}) {
    return {name, AutoIntegerSpec{member<kMember>(), range, largest}, doc};
  }
  template <auto kMember>
  static constexpr Key number(std::string_view name, NumberRange range, std::string_view doc) {
    return {name, NumberSpec{member<kMember>(), range}, doc};
  }
  template <auto kMember>
  static constexpr Key auto_number(std::string_view name, NumberRange range, std::string_view doc) {
    return {name, AutoNumberSpec{member<kMember>(), range}, doc};
  }
  // Makes a key that holds a list of structs, whose keys `keys` gives.
  template <auto kMember>
  static Key tables(std::string_view name, std::vector<Key> (*keys)(), std::string_view doc) {
    return {name,
            TablesSpec{keys,
                       [](const void* options) {
                         return (static_cast<const Struct*>(options)->*kMember).size();
                       },
                       [](const void* options, std::size_t index) -> const void* {
                         return &(static_cast<const Struct*>(options)->*kMember)[index];
                       },
                       [](void* options) { (static_cast<Struct*>(options)->*kMember).clear(); },
                       [](void* options) -> void* {
                         return &(static_cast<Struct*>(options)->*kMember).emplace_back();
                       }},
            doc};
  }
  // Makes a key as tables() does, for structs with a member `name`: each has a table of that name.
  template <auto kMember>
  static Key named_tables(std::string_view name, std::vector<Key> (*keys)(), std::string_view doc) {
    using Element = typename Type<kMember>::value_type;
    Key key = tables<kMember>(name, keys, doc);
    std::get<TablesSpec>(key.spec).name_of = [](void* table) -> std::string& {
      return static_cast<Element*>(table)->name;
    };
    return key;
  }
  template <auto kMember>
  static constexpr Key seconds(std::string_view name, std::string_view doc) {
    constexpr NumberRange kTimeouts{0, kLongestTimeout, NumberRange::End::kOpen,
                                    NumberRange::End::kClosed};
    return {name, SecondsSpec{member<kMember>(), kTimeouts}, doc};
  }
  template <auto kMember>
  static constexpr Key boolean(std::string_view name, std::string_view doc) {
    return {name, BoolSpec{member<kMember>()}, doc};
  }
  template <auto kMember>
  static constexpr Key text(std::string_view name, std::string_view doc) {
    return {name, TextSpec{member<kMember>()}, doc};
  }
  // Makes a key that holds an enumerator. `allowed` lists those that are allowed; none stands for
  // all.
  template <auto kMember, class... Enum>
  static Key choice(std::string_view name, std::string_view doc, Enum... allowed) {
    using T = Type<kMember>;
    static_assert((std::same_as<T, Enum> && ...));
    const std::uint32_t mask =
        sizeof...(allowed) == 0 ? ~0U : (0U | ... | (1U << static_cast<unsigned>(allowed)));
    return {name,
            ChoiceSpec{names_of<T>(), mask,
                       [](const void* options) {
                         return static_cast<int>(static_cast<const Struct*>(options)->*kMember);
                       },
                       [](void* options, int value) {
                         static_cast<Struct*>(options)->*kMember = static_cast<T>(value);
                       }},
            doc};
  }
  template <auto kMember>
  static constexpr Key word(std::string_view name, std::vector<std::string_view> (*names)(),
                            std::string_view doc) {
    return {name, WordSpec{member<kMember>(), names}, doc};
  }
  template <auto kMember>
  static constexpr Key integers(std::string_view name, IntegerRange range, std::string_view doc) {
    return {name, IntegerListSpec{member<kMember>(), range}, doc};
  }
  template <auto kMember>
  static constexpr Key numbers(std::string_view name, NumberRange range, std::string_view doc) {
    return {name, NumberListSpec{member<kMember>(), range}, doc};
  }
  template <auto kMember>
  static constexpr Key pair(std::string_view name, NumberRange range, std::string_view doc) {
    return {name, NumberPairSpec{member<kMember>(), range}, doc};
  }
  template <auto kMember>
  static constexpr Key conditions(std::string_view name, std::string_view doc) {
    return {name, ConditionListSpec{member<kMember>()}, doc};
  }
  template <auto kMember>
  static constexpr Key texts(std::string_view name, std::string_view doc) {
    return {name, TextListSpec{member<kMember>()}, doc};
  }
};

}  // namespace troika
