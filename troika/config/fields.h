// The one table of the recipe's keys. Reading, writing, the printed defaults, docs/recipe.md, the
// shell completion and the "did you mean" of errors all walk it, so a key is added by one member in
// recipe.h and one line here.
#pragma once

#include <troika/config/recipe.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troika {

// Where a value of type T lies in a recipe.
template <class T>
struct Accessor {
  T& (*edit)(Recipe&);
  const T& (*read)(const Recipe&);
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

// What a key may hold.
struct IntegerSpec {
  Accessor<std::int64_t> at;
  IntegerRange range;
};
struct AutoIntegerSpec {  // "auto" (absent) or an integer
  Accessor<std::optional<std::int64_t>> at;
  IntegerRange range;
};
struct NumberSpec {
  Accessor<double> at;
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
struct ChoiceSpec {
  std::span<const std::string_view> names;  // in the order of the enumerators
  std::uint32_t allowed;                    // a bit for each of them
  int (*read)(const Recipe&);
  void (*write)(Recipe&, int);

  [[nodiscard]] std::vector<std::string_view> allowed_names() const;
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

using Spec =
    std::variant<IntegerSpec, AutoIntegerSpec, NumberSpec, SecondsSpec, BoolSpec, TextSpec,
                 ChoiceSpec, IntegerListSpec, NumberListSpec, NumberPairSpec, TextListSpec>;

struct Field {
  std::string_view section;  // empty: before the first section
  std::string_view key;
  Spec spec;
  std::string_view meaning;
  std::optional<ModelKind> model = std::nullopt;  // absent: every kind of model has it
  bool is_required = false;
  std::string_view derived = {};  // where a default follows from other keys: how

  [[nodiscard]] std::string full_key() const;  // "model.layers", "name"
  [[nodiscard]] bool applies_to(ModelKind kind) const { return !model || *model == kind; }

  // Refinements, for the table.
  [[nodiscard]] constexpr Field required() const {
    Field field = *this;
    field.is_required = true;
    return field;
  }
  [[nodiscard]] constexpr Field only(ModelKind kind) const {
    Field field = *this;
    field.model = kind;
    return field;
  }
  [[nodiscard]] constexpr Field derived_from(std::string_view how) const {
    Field field = *this;
    field.derived = how;
    return field;
  }
};

// All keys, in the order of the file. A key that two kinds of model read differently is there
// twice.
[[nodiscard]] std::span<const Field> fields();

// "model", "data", ...: in the order of the file, without the nameless first one.
[[nodiscard]] std::span<const std::string_view> sections();

// The field of a key for a kind of model; null if that kind has none of this name.
[[nodiscard]] const Field* find_field(std::string_view section, std::string_view key,
                                      ModelKind kind);

// What a model of this kind starts from before the file is read.
[[nodiscard]] Recipe default_recipe(ModelKind kind);

// "integer", "list of strings": for messages and documents.
[[nodiscard]] std::string type_name(const Spec& spec);

// The values that are allowed, or empty where every value of the type is.
[[nodiscard]] std::string describe_range(const Spec& spec);

}  // namespace troika
