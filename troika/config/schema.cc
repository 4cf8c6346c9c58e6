#include <troika/base/text.h>
#include <troika/config/schema.h>
#include <troika/config/toml_text.h>

#include <cmath>

namespace troika {
namespace {

// The range of each key by itself.
class RangeCheck {
 public:
  // `name` is what messages call the key, `full_name` where it was written.
  RangeCheck(std::string full_name, std::string name, const Key& key, const void* options,
             const Origins& origins)
      : full_name_(std::move(full_name)),
        name_(std::move(name)),
        key_(key),
        options_(options),
        origins_(origins) {}

  void operator()(const IntegerSpec& spec) const { check(spec.at.read(options_), spec.range); }
  void operator()(const AutoIntegerSpec& spec) const {
    if (spec.at.read(options_)) check(*spec.at.read(options_), spec.range);
  }
  void operator()(const NumberSpec& spec) const { check(spec.at.read(options_), spec.range); }
  void operator()(const SecondsSpec& spec) const { check(spec.at.read(options_), spec.range); }
  void operator()(const BoolSpec&) const {}
  void operator()(const TextSpec& spec) const { check(spec.at.read(options_)); }
  void operator()(const ChoiceSpec& spec) const {
    if ((spec.allowed >> spec.read(options_) & 1U) == 0) fail_word();
  }
  void operator()(const WordSpec& spec) const {
    const std::vector<std::string_view> names = spec.names();
    if (std::ranges::count(names, spec.at.read(options_)) == 0) fail_word();
  }
  void operator()(const KindSpec&) const {}
  void operator()(const AutoNumberSpec& spec) const {
    if (spec.at.read(options_)) check(*spec.at.read(options_), spec.range);
  }
  void operator()(const TablesSpec& spec) const {
    const std::vector<Key> keys = spec.keys();
    for (std::size_t i = 0; i < spec.size(options_); ++i) {
      for (const Key& key : keys) {
        const std::string name =
            element_name(name_, spec, options_, i) + "." + std::string(key.name);
        const RangeCheck of_table(full_name_, name, key, spec.read(options_, i), origins_);
        std::visit(of_table, key.spec);
      }
    }
  }
  void operator()(const ConditionListSpec&) const {}
  void operator()(const OptionsSpec& spec) const {
    const Component* component = spec.component(options_);
    if (component == nullptr) return;
    for (const Key& key : component->keys()) {
      const RangeCheck inner(full_name_ + "." + std::string(key.name),
                             name_ + "." + std::string(key.name), key, spec.read(options_),
                             origins_);
      std::visit(inner, key.spec);
    }
  }
  template <class ListSpec>
  void operator()(const ListSpec& spec) const {
    for (const auto& value : spec.at.read(options_)) {
      if constexpr (requires { spec.range; }) {
        check(value, spec.range);
      } else {
        check(value);
      }
    }
  }

 private:
  void check(std::int64_t value, const IntegerRange& range) const {
    if (!range.contains(value)) {
      fail(std::to_string(value) + " is out of range: " + range.describe());
    }
  }
  void check(double value, const NumberRange& range) const {
    if (!std::isfinite(value)) fail("expected a finite number, found " + toml_number(value));
    if (!range.contains(value)) {
      fail(toml_number(value) + " is out of range: " + range.describe());
    }
  }
  void check(const std::string& value) const {
    if (value.empty()) fail("must not be empty");
    if (value.find('\0') != std::string::npos) fail("contains a NUL character");
  }
  [[noreturn]] void fail_word() const {
    fail(toml_value(key_, options_) + " is not one of " + join(allowed_words(key_.spec), ", "));
  }
  [[noreturn]] void fail(const std::string& what) const {
    origins_.fail({full_name_}, name_ + ": " + what);
  }

  std::string full_name_, name_;
  const Key& key_;
  const void* options_;
  const Origins& origins_;
};

void add_keys(std::vector<SchemaKey>& all, const Section& section, const Component* kind,
              std::span<const Key> keys) {
  for (const Key& key : keys) all.push_back({&section, kind, &key});
}

}  // namespace

std::string element_name(std::string_view list, const TablesSpec& spec, const void* options,
                         std::size_t index) {
  if (spec.named()) return std::string(list) + "." + spec.name(options, index);
  return std::string(list) + "[" + std::to_string(index) + "]";
}

std::string SchemaKey::full_name() const {
  std::string text(section->name);
  if (!text.empty()) text += '.';
  return text + std::string(key->name);
}

Schema::Schema(std::vector<Section> sections, std::shared_ptr<void> (*make_default)())
    : sections_(std::move(sections)), make_default_(make_default) {}

std::vector<std::string_view> Schema::section_names() const {
  std::vector<std::string_view> names;
  for (const Section& section : sections_) {
    if (!section.name.empty()) names.push_back(section.name);
  }
  return names;
}

const Section* Schema::find_section(std::string_view name) const {
  const auto found = std::ranges::find(sections_, name, &Section::name);
  return found == sections_.end() ? nullptr : &*found;
}

std::vector<SchemaKey> Schema::all_keys() const {
  std::vector<SchemaKey> all;
  for (const Section& section : sections_) {
    add_keys(all, section, nullptr, section.keys);
    if (const auto choice = kind_choice(section)) {
      for (const Component* kind : choice->spec.all()) add_keys(all, section, kind, kind->keys());
    }
  }
  return all;
}

std::vector<SchemaKey> Schema::keys_of(const void* document) const {
  std::vector<SchemaKey> all;
  for (const Section& section : sections_) {
    add_keys(all, section, nullptr, section.keys);
    if (const Component* kind = chosen_kind(section, document)) {
      add_keys(all, section, kind, kind->keys());
    }
  }
  return all;
}

std::optional<SchemaKey> Schema::find(const void* document, std::string_view section,
                                      std::string_view key) const {
  for (const SchemaKey& each : keys_of(document)) {
    if (each.section->name == section && each.key->name == key) return each;
  }
  return std::nullopt;
}

void* options_at(const SchemaKey& key, void* document) {
  if (key.kind != nullptr) return key.section->options(document).data();
  if (std::holds_alternative<KindSpec>(key.key->spec)) return document;
  return key.section->at(document);
}

const void* options_at(const SchemaKey& key, const void* document) {
  return options_at(key, const_cast<void*>(document));
}

std::optional<KindChoice> kind_choice(const Section& section) {
  if (section.chosen_elsewhere) return section.chosen_elsewhere;
  for (const Key& key : section.keys) {
    const auto* spec = std::get_if<KindSpec>(&key.spec);
    if (spec != nullptr && key.name == "kind") return KindChoice{*spec, section.name, key.name};
  }
  return std::nullopt;
}

std::string kind_text(const KindChoice& choice, const Component& kind) {
  return std::string(choice.key) + " = \"" + std::string(kind.name()) + "\"";
}

const Component* chosen_kind(const Section& section, const void* document) {
  const std::optional<KindChoice> choice = kind_choice(section);
  return choice ? choice->spec.read(document) : nullptr;
}

void check_value(const SchemaKey& key, const void* document, const Origins& origins) {
  const RangeCheck check(key.full_name(), std::string(key.key->name), *key.key,
                         options_at(key, document), origins);
  std::visit(check, key.key->spec);
}

void check_values(const Schema& schema, const void* document, const Origins& origins) {
  for (const SchemaKey& key : schema.keys_of(document)) {
    check_value(key, document, origins);
  }
  for (const Section& section : schema.sections()) {
    const Component* kind = chosen_kind(section, document);
    if (kind == nullptr) continue;
    kind->check(section.options(const_cast<void*>(document)), origins);
  }
}

}  // namespace troika
