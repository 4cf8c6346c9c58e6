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
    const auto* items = std::get_if<TomlValue::List>(&entry_.value.data);
    if (items == nullptr) fail_type(entry_.value.describe());
    spec.clear(options_);
    for (std::size_t i = 0; i < items->size(); ++i) {
      const auto* table = std::get_if<TomlValue::Table>(&(*items)[i].data);
      if (table == nullptr) {
        fail_type((*items)[i].describe() + " at position " + std::to_string(i + 1));
      }
      fill(spec, i, *table);
    }
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

 private:
  // Fills in one table of a list.
  void fill(const TablesSpec& spec, std::size_t index, const TomlValue::Table& table) const {
    const std::vector<Key> keys = spec.keys();
    void* const options = spec.append(options_);
    for (std::size_t i = 0; i < table.names.size(); ++i) {
      const auto key = std::ranges::find(keys, table.names[i], &Key::name);
      if (key == keys.end()) fail_unknown(keys, index, table.names[i]);
      const TomlEntry entry{entry_.section, table.names[i], table.values[i], entry_.where, ""};
      const Assigner element(element_name(name_, index, *key), toml_value(*key, options), *key,
                             options, entry);
      std::visit(element, key->spec);
    }
    for (const Key& key : keys) {
      if (!key.is_required || std::ranges::count(table.names, key.name) > 0) continue;
      throw UsageError(label() + "[" + std::to_string(index) + "]: missing required key '" +
                           std::string(key.name) + "'",
                       std::string(key.name) + ": " + std::string(key.meaning));
    }
  }

  [[noreturn]] void fail_unknown(std::span<const Key> keys, std::size_t index,
                                 const std::string& name) const {
    std::vector<std::string_view> names;
    for (const Key& key : keys) names.push_back(key.name);
    std::string message =
        label() + "[" + std::to_string(index) + "]: unknown key " + quote(name, 40);
    if (const auto likely = nearest(name, std::span(names))) {
      message += "; did you mean '" + *likely + "'?";
    }
    throw UsageError(message, "a table of " + name_ + " has " + join(names, ", "));
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

  [[nodiscard]] std::string label() const {
    std::string text = entry_.where + ": ";
    if (!entry_.section.empty()) text += "[" + entry_.section + "] ";
    return text + name_;
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
