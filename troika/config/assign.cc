#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/config/assign.h>
#include <troika/config/toml_text.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {
namespace {

template <class T>
std::optional<T> as(const TomlValue& value) {
  const T* held = std::get_if<T>(&value.data);
  return held == nullptr ? std::nullopt : std::optional<T>(*held);
}

template <>
std::optional<double> as(const TomlValue& value) {
  if (const auto* held = std::get_if<double>(&value.data)) return *held;
  if (const auto* whole = std::get_if<std::int64_t>(&value.data)) {
    return static_cast<double>(*whole);
  }
  return std::nullopt;
}

struct Alias {
  std::string_view word;
  std::string_view name;
};

// What other programs call a choice.
constexpr auto kAliases = std::to_array<Alias>({{"bfloat16", "bf16"},
                                                {"float16", "fp16"},
                                                {"half", "fp16"},
                                                {"float32", "fp32"},
                                                {"float", "fp32"},
                                                {"single", "fp32"},
                                                {"float64", "fp64"},
                                                {"double", "fp64"}});

// The one of `names` that the word may stand for.
std::optional<std::string> choice_meant(std::string_view word,
                                        std::span<const std::string_view> names) {
  for (const Alias& alias : kAliases) {
    if (alias.word == word && std::ranges::count(names, alias.name) > 0) {
      return std::string(alias.name);
    }
  }
  return nearest(word, names);
}

std::optional<Literal> literal_of(const TomlValue& value) {
  return std::visit(
      [](const auto& held) -> std::optional<Literal> {
        if constexpr (std::is_constructible_v<Literal, decltype(held)>) return Literal(held);
        return std::nullopt;
      },
      value.data);
}

// Nothing where it is not [NAME, RELATION, VALUE], or [NAME, RELATION, [VALUE, ...]].
std::optional<Condition> condition_of(const TomlValue& value) {
  const auto* parts = std::get_if<TomlValue::List>(&value.data);
  if (parts == nullptr || parts->size() != 3) return std::nullopt;
  const auto name = as<std::string>((*parts)[0]), relation = as<std::string>((*parts)[1]);
  if (!name || !relation) return std::nullopt;
  Condition condition{*name, *relation, {}, false};
  const auto* list = std::get_if<TomlValue::List>(&(*parts)[2].data);
  condition.is_list = list != nullptr;
  const TomlValue::List single = {(*parts)[2]};
  for (const TomlValue& each : list != nullptr ? *list : single) {
    const std::optional<Literal> literal = literal_of(each);
    if (!literal) return std::nullopt;
    condition.values.push_back(*literal);
  }
  return condition;
}

class Assigner {
 public:
  // `name` is what messages call the key, `example` a value that it takes.
  Assigner(std::string name, std::string example, const Key& key, void* options,
           const TomlEntry& entry)
      : name_(std::move(name)),
        example_(std::move(example)),
        key_(key),
        options_(options),
        entry_(entry) {}

  void operator()(const IntegerSpec& spec) const { spec.at.edit(options_) = one<std::int64_t>(); }
  void operator()(const AutoIntegerSpec& spec) const {
    const std::optional<std::string> word = as<std::string>(entry_.value);
    if (word == "auto") {
      spec.at.edit(options_) = std::nullopt;
    } else if (word && !spec.largest.empty() && *word == spec.largest) {
      spec.at.edit(options_) = std::numeric_limits<std::int64_t>::max();
    } else {
      spec.at.edit(options_) = one<std::int64_t>();
    }
  }
  void operator()(const AutoNumberSpec& spec) const {
    if (as<std::string>(entry_.value) == "auto") {
      spec.at.edit(options_) = std::nullopt;
    } else {
      spec.at.edit(options_) = one<double>();
    }
  }
  void operator()(const TablesSpec& spec) const {
    if (spec.named()) return fill_named(spec);
    const auto* items = std::get_if<TomlValue::List>(&entry_.value.data);
    if (items == nullptr) fail_type(entry_.value.describe());
    spec.clear(options_);
    for (std::size_t i = 0; i < items->size(); ++i) {
      const auto* table = std::get_if<TomlValue::Table>(&(*items)[i].data);
      if (table == nullptr) {
        fail_type((*items)[i].describe() + " at position " + std::to_string(i + 1));
      }
      spec.append(options_);
      fill_table(spec, i, *table);
    }
  }
  void operator()(const OptionsSpec& spec) const {
    const auto* table = std::get_if<TomlValue::Table>(&entry_.value.data);
    if (table == nullptr) fail_type(entry_.value.describe());
    const Component* component = spec.component(options_);
    check(component != nullptr, "options before the component that declares them");
    fill(component->keys(), name_, spec.edit(options_), *table, name_);
  }
  void operator()(const NumberSpec& spec) const { spec.at.edit(options_) = one<double>(); }
  void operator()(const SecondsSpec& spec) const { spec.at.edit(options_) = one<double>(); }
  void operator()(const BoolSpec& spec) const { spec.at.edit(options_) = one<bool>(); }
  void operator()(const TextSpec& spec) const {
    // `--set name=2026-11-20` means the text, though TOML has a date there.
    const bool typed_as_text = !entry_.raw.empty() && !as<std::string>(entry_.value);
    spec.at.edit(options_) = typed_as_text ? entry_.raw : one<std::string>();
  }
  void operator()(const ChoiceSpec& spec) const {
    const std::string word = one<std::string>();
    for (std::size_t i = 0; i < spec.names.size(); ++i) {
      if (spec.names[i] == word && (spec.allowed >> i & 1U) != 0) {
        spec.write(options_, static_cast<int>(i));
        return;
      }
    }
    fail_word(word);
  }
  void operator()(const WordSpec& spec) const {
    std::string word = one<std::string>();
    if (std::ranges::count(spec.names(), word) == 0) fail_word(word);
    spec.at.edit(options_) = std::move(word);
  }
  void operator()(const KindSpec& spec) const {
    const std::string word = one<std::string>();
    for (const Component* kind : spec.all()) {
      if (kind->name() == word) {
        spec.write(options_, *kind);
        return;
      }
    }
    fail_word(word);
  }
  void operator()(const IntegerListSpec& spec) const {
    spec.at.edit(options_) = list<std::int64_t>();
  }
  void operator()(const NumberListSpec& spec) const { spec.at.edit(options_) = list<double>(); }
  void operator()(const NumberPairSpec& spec) const {
    const std::vector<double> values = list<double>();
    if (values.size() != 2) fail_type(entry_.value.describe());
    spec.at.edit(options_) = {values[0], values[1]};
  }
  void operator()(const TextListSpec& spec) const { spec.at.edit(options_) = list<std::string>(); }
  void operator()(const ConditionListSpec& spec) const {
    const auto* items = std::get_if<TomlValue::List>(&entry_.value.data);
    if (items == nullptr) fail_type(entry_.value.describe());
    std::vector<Condition> conditions;
    for (const TomlValue& item : *items) {
      std::optional<Condition> condition = condition_of(item);
      if (!condition) {
        fail_type(item.describe() + " at position " + std::to_string(conditions.size() + 1));
      }
      conditions.push_back(std::move(*condition));
    }
    spec.at.edit(options_) = std::move(conditions);
  }

 private:
  void fill_named(const TablesSpec& spec) const {
    const auto* named = std::get_if<TomlValue::Table>(&entry_.value.data);
    if (named == nullptr) fail_type(entry_.value.describe());
    spec.clear(options_);
    for (std::size_t i = 0; i < named->names.size(); ++i) {
      const auto* table = std::get_if<TomlValue::Table>(&named->values[i].data);
      if (table == nullptr) {
        fail_type(named->values[i].describe() + " as " + quote(named->names[i], 40));
      }
      spec.name_of(spec.append(options_)) = named->names[i];
      fill_table(spec, i, *table);
    }
  }
  // Fills in the last table of a list.
  void fill_table(const TablesSpec& spec, std::size_t index, const TomlValue::Table& table) const {
    fill(spec.keys(), element_name(name_, spec, options_, index),
         const_cast<void*>(spec.read(options_, index)), table, "a table of " + name_);
  }
  // Fills in a struct that has these keys. `name` is what messages call it; `owner` has the keys.
  void fill(std::span<const Key> keys, const std::string& name, void* options,
            const TomlValue::Table& table, const std::string& owner) const {
    for (std::size_t i = 0; i < table.names.size(); ++i) {
      const auto key = std::ranges::find(keys, table.names[i], &Key::name);
      const TomlEntry entry{entry_.section, table.names[i], table.values[i], table.where[i], ""};
      if (key == keys.end()) fail_unknown(keys, name, entry, owner);
      const Assigner element(name + "." + std::string(key->name), toml_value(*key, options), *key,
                             options, entry);
      std::visit(element, key->spec);
    }
    for (const Key& key : keys) {
      if (!key.is_required || std::ranges::count(table.names, key.name) > 0) continue;
      throw UsageError(
          label_of(name, entry_.where) + ": missing required key '" + std::string(key.name) + "'",
          std::string(key.name) + ": " + std::string(key.meaning));
    }
  }

  [[noreturn]] void fail_unknown(std::span<const Key> keys, const std::string& table,
                                 const TomlEntry& entry, const std::string& owner) const {
    std::vector<std::string_view> names;
    for (const Key& key : keys) names.push_back(key.name);
    std::string message = label_of(table, entry.where) + ": unknown key " + quote(entry.key, 40);
    if (const auto likely = nearest(entry.key, std::span(names))) {
      message += "; did you mean '" + *likely + "'?";
    }
    throw UsageError(message, owner + " has " + (names.empty() ? "no keys" : join(names, ", ")));
  }

  template <class T>
  T one() const {
    const std::optional<T> value = as<T>(entry_.value);
    if (!value) fail_type(entry_.value.describe());
    return *value;
  }

  template <class T>
  std::vector<T> list() const {
    const auto* items = std::get_if<TomlValue::List>(&entry_.value.data);
    if (items == nullptr) fail_type(entry_.value.describe());
    std::vector<T> values;
    for (const TomlValue& item : *items) {
      const std::optional<T> value = as<T>(item);
      if (!value) {
        fail_type(item.describe() + " at position " + std::to_string(values.size() + 1));
      }
      values.push_back(*value);
    }
    return values;
  }

  [[nodiscard]] std::string label() const { return label_of(name_, entry_.where); }
  [[nodiscard]] std::string label_of(const std::string& name, const std::string& where) const {
    std::string text = where + ": ";
    if (!entry_.section.empty()) text += "[" + entry_.section + "] ";
    return text + name;
  }

  [[noreturn]] void fail_type(const std::string& found) const {
    throw UsageError(label() + ": expected " + type_name(key_.spec) + ", found " + found,
                     "as in " + std::string(key_.name) + " = " + example());
  }

  // The default; where that is an empty list, one of what was found.
  [[nodiscard]] std::string example() const {
    const auto* text = std::get_if<std::string>(&entry_.value.data);
    return example_ == "[]" && text != nullptr ? "[" + toml_string(*text) + "]" : example_;
  }

  [[noreturn]] void fail_word(const std::string& word) const {
    const std::vector<std::string_view> names = allowed_words(key_.spec);
    std::string message = label() + ": " + quote(word, 40) + " is not one of " + join(names, ", ");
    if (const auto likely = choice_meant(word, names)) {
      message += "; did you mean '" + *likely + "'?";
    }
    throw UsageError(message);
  }

  std::string name_, example_;
  const Key& key_;
  void* options_;
  const TomlEntry& entry_;
};

}  // namespace

void assign(const Schema& schema, void* document, const SchemaKey& key, const TomlEntry& entry) {
  const Assigner assigner(std::string(key.key->name), default_value(schema, key), *key.key,
                          options_at(key, document), entry);
  std::visit(assigner, key.key->spec);
}

}  // namespace troika
