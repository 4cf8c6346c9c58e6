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
  Assigner(const Schema& schema, void* document, const SchemaKey& key, const TomlEntry& entry)
      : schema_(schema), key_(key), entry_(entry), options_(options_at(key, document)) {}

  void operator()(const IntegerSpec& spec) const { spec.at.edit(options_) = one<std::int64_t>(); }
  void operator()(const AutoIntegerSpec& spec) const {
    if (as<std::string>(entry_.value) == "auto") {
      spec.at.edit(options_) = std::nullopt;
    } else {
      spec.at.edit(options_) = one<std::int64_t>();
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
    if (!key_.section->name.empty()) text += "[" + std::string(key_.section->name) + "] ";
    return text + std::string(key_.key->name);
  }

  [[noreturn]] void fail_type(const std::string& found) const {
    throw UsageError(
        label() + ": expected " + type_name(key_.key->spec) + ", found " + found,
        "as in " + std::string(key_.key->name) + " = " + default_value(schema_, key_));
  }

  [[noreturn]] void fail_word(const std::string& word) const {
    const std::vector<std::string_view> names = allowed_words(key_.key->spec);
    std::string message = label() + ": " + quote(word, 40) + " is not one of " + join(names, ", ");
    if (const auto likely = choice_meant(word, names)) {
      message += "; did you mean '" + *likely + "'?";
    }
    throw UsageError(message);
  }

  const Schema& schema_;
  const SchemaKey& key_;
  const TomlEntry& entry_;
  void* options_;
};

}  // namespace

void assign(const Schema& schema, void* document, const SchemaKey& key, const TomlEntry& entry) {
  std::visit(Assigner(schema, document, key, entry), key.key->spec);
}

}  // namespace troika
