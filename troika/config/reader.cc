#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/config/assign.h>
#include <troika/config/nearest_key.h>
#include <troika/config/reader.h>
#include <troika/config/toml_text.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace troika {
namespace {

constexpr std::string_view kProvenance = "provenance";

std::string full_name(const TomlEntry& entry) {
  return entry.section.empty() ? entry.key : entry.section + "." + entry.key;
}

std::string kind_is(const Section& section, const Component& kind) {
  return kind_text(*kind_choice(section), kind);
}

// Finds keys that entries may mean. Where a section's kind is known, those of its other kinds are
// left out.
class KnownKeys {
 public:
  explicit KnownKeys(const Schema& schema) : schema_(schema), all_(schema.all_keys()) {}

  // Takes the kinds that these entries name, where there are such.
  void take_kinds(const std::vector<TomlEntry>& entries) {
    kinds_.clear();
    for (const Section& section : schema_.sections()) {
      const std::optional<KindChoice> choice = kind_choice(section);
      if (!choice) continue;
      for (const TomlEntry& entry : entries) {
        const auto* word = std::get_if<std::string>(&entry.value.data);
        if (entry.section != choice->section || entry.key != choice->key || !word) continue;
        for (const Component* kind : choice->spec.all()) {
          if (kind->name() == *word) kinds_[&section] = kind;
        }
      }
    }
  }

  [[nodiscard]] bool has(const TomlEntry& entry) const {
    return std::ranges::any_of(all_, [&](const SchemaKey& key) {
      return key.section->name == entry.section && key.key->name == entry.key;
    });
  }

  // "section.key" of every key, once; of those with this name alone unless it is empty.
  [[nodiscard]] std::vector<std::string> full_names(std::string_view name = {}) const {
    std::vector<std::string> names;
    for (const SchemaKey& key : all_) {
      if (!belongs(key)) continue;
      if (name.empty() || key.key->name == name) names.push_back(key.full_name());
    }
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }

  [[nodiscard]] std::vector<std::string_view> names_in(std::string_view section) const {
    std::set<std::string_view> seen;
    std::vector<std::string_view> names;
    for (const SchemaKey& key : all_) {
      if (key.section->name != section || !belongs(key)) continue;
      if (seen.insert(key.key->name).second) names.push_back(key.key->name);
    }
    return names;
  }

  // The kinds that have this entry's key.
  [[nodiscard]] std::vector<SchemaKey> owners(const TomlEntry& entry) const {
    std::vector<SchemaKey> owners;
    for (const SchemaKey& key : all_) {
      if (key.section->name == entry.section && key.key->name == entry.key) owners.push_back(key);
    }
    return owners;
  }

 private:
  [[nodiscard]] bool belongs(const SchemaKey& key) const {
    const auto known = kinds_.find(key.section);
    return key.kind == nullptr || known == kinds_.end() || known->second == key.kind;
  }

  const Schema& schema_;
  std::vector<SchemaKey> all_;
  std::map<const Section*, const Component*> kinds_;
};

class Reader {
 public:
  Reader(const Schema& schema, void* document)
      : schema_(schema), document_(document), known_(schema) {}

  ReadReport read(std::string_view text, std::string_view source_name,
                  std::span<const std::string> overrides) {
    TomlSource source = parse_toml(text, source_name);
    check_sections(source);
    const std::vector<TomlEntry> entries = apply_overrides(std::move(source.entries), overrides);
    result_.origins = Origins(std::string(source_name));
    result_.sections = std::move(source.sections);
    for (const TomlEntry& entry : entries) {
      record(full_name(entry), entry.value, entry.where);
    }
    for (const Section& section : schema_.sections()) choose_kind(section, entries);
    for (const TomlEntry& entry : entries) {
      if (!holds_options(entry)) take(entry);
    }
    for (const SchemaKey& key : schema_.keys_of(document_)) {
      if (key.key->is_required && !result_.origins.has(key.full_name())) fail_missing(key);
    }
    take_options(entries);
    for (const Section& section : schema_.sections()) {
      const Component* kind = chosen_kind(section, document_);
      if (kind != nullptr) kind->derive(section.options(document_), result_.origins);
    }
    return std::move(result_);
  }

 private:
  void check_sections(const TomlSource& source) const {
    const std::vector<std::string_view> names = schema_.section_names();
    for (const TomlSection& section : source.sections) {
      if (section.name == kProvenance || is_section(section.name)) continue;
      const std::string quoted = quote(section.name);
      std::string message =
          section.where + ": unknown section [" + quoted.substr(1, quoted.size() - 2) + "]";
      if (const auto likely = nearest(section.name, std::span(names))) {
        message += "; did you mean [" + *likely + "]?";
      }
      throw UsageError(message, "sections are " + join(names, ", "));
    }
  }

  // Returns whether a key is gone, and has the value that did nothing.
  [[nodiscard]] bool is_idle(const TomlEntry& entry) const {
    const Section* section = schema_.find_section(entry.section);
    const auto* value = std::get_if<std::string>(&entry.value.data);
    return section != nullptr && value != nullptr &&
           std::ranges::any_of(section->retired, [&](const RetiredKey& key) {
             return key.name == entry.key && key.idle == *value;
           });
  }

  // The file's entries with the overrides in their places.
  std::vector<TomlEntry> apply_overrides(std::vector<TomlEntry> entries,
                                         std::span<const std::string> overrides) {
    std::erase_if(entries, [this](const TomlEntry& entry) {
      return entry.section == kProvenance || is_idle(entry);
    });
    known_.take_kinds(entries);
    for (const TomlEntry& entry : entries) {
      if (!known_.has(entry)) fail_unknown_key(entry);
    }
    for (const std::string& argument : overrides) {
      TomlEntry entry = parse_override(argument);
      const std::optional<std::string> inner = take_inner_name(entry);
      if (!known_.has(entry)) fail_unknown_key(entry);
      const auto same = std::ranges::find_if(entries, [&](const TomlEntry& other) {
        return other.section == entry.section && other.key == entry.key;
      });
      if (inner) {
        TomlValue whole{same != entries.end() ? same->value.data
                                              : decltype(TomlValue::data)(TomlValue::Table())};
        set_inside(whole, *inner, std::move(entry.value), entry.where);
        entry.value = std::move(whole);
        entry.raw.clear();
      }
      if (same != entries.end()) {
        *same = std::move(entry);
      } else {
        entries.push_back(std::move(entry));
      }
      known_.take_kinds(entries);
    }
    return entries;
  }

  // Takes "x.shape" off the key "inputs.x.shape" if `inputs` holds named tables, or is one table.
  [[nodiscard]] std::optional<std::string> take_inner_name(TomlEntry& entry) const {
    const std::size_t dot = entry.key.find('.');
    if (dot == std::string::npos) return std::nullopt;
    TomlEntry outer = entry;
    outer.key = entry.key.substr(0, dot);
    for (const SchemaKey& owner : known_.owners(outer)) {
      const auto* tables = std::get_if<TablesSpec>(&owner.key->spec);
      const bool named = tables != nullptr && tables->named();
      if (!named && !std::holds_alternative<OptionsSpec>(owner.key->spec)) continue;
      std::string inner = entry.key.substr(dot + 1);
      entry.key = outer.key;
      return inner;
    }
    return std::nullopt;
  }

  // Sets "x.shape" of a table of tables: the last dot separates the key.
  static void set_inside(TomlValue& whole, const std::string& name, TomlValue value,
                         const std::string& where) {
    const std::size_t dot = name.rfind('.');
    TomlValue* at = &member(whole, name.substr(0, dot), where);
    if (dot != std::string::npos) at = &member(*at, name.substr(dot + 1), where);
    *at = std::move(value);
  }
  // Replaces a value that is no table by one.
  static TomlValue& member(TomlValue& of, const std::string& name, const std::string& where) {
    if (!std::holds_alternative<TomlValue::Table>(of.data)) of.data = TomlValue::Table();
    auto& table = std::get<TomlValue::Table>(of.data);
    const auto found = std::ranges::find(table.names, name);
    const auto index = static_cast<std::size_t>(found - table.names.begin());
    if (found == table.names.end()) {
      table.names.push_back(name);
      table.values.push_back({TomlValue::Table()});
      table.where.emplace_back();
    }
    table.where[index] = where;
    return table.values[index];
  }

  // The kinds come first: they say which keys there are.
  void choose_kind(const Section& section, const std::vector<TomlEntry>& entries) const {
    const std::optional<KindChoice> choice = kind_choice(section);
    if (!choice) return;
    const SchemaKey key = *schema_.find(document_, choice->section, choice->key);
    const auto found = std::ranges::find_if(entries, [&](const TomlEntry& entry) {
      return entry.section == choice->section && entry.key == choice->key;
    });
    if (found != entries.end()) {
      assign(schema_, document_, key, *found);
    } else if (key.key->is_required) {
      fail_missing(key);
    }
  }

  void take(const TomlEntry& entry) {
    if (const auto key = schema_.find(document_, entry.section, entry.key)) {
      if (!std::holds_alternative<KindSpec>(key->key->spec)) {
        assign(schema_, document_, *key, entry);
      }
      return;
    }
    const Section& section = *schema_.find_section(entry.section);
    if (section.other_kinds == OtherKinds::kRefused) fail_other_kind(section, entry);
    leave_unused(section, entry);
  }

  // Tables whose keys a component declares come last: the keys beside them choose it.
  void take_options(const std::vector<TomlEntry>& entries) {
    for (const SchemaKey& key : schema_.keys_of(document_)) {
      const auto* spec = std::get_if<OptionsSpec>(&key.key->spec);
      if (spec == nullptr) continue;
      void* const options = options_at(key, document_);
      spec->choose(options, result_.origins);
      for (const TomlEntry& entry : entries) {
        if (full_name(entry) == key.full_name()) take(entry);
      }
      for (const Key& inner : spec->component(options)->keys()) {
        const std::string name = key.full_name() + "." + std::string(inner.name);
        if (!inner.is_required || result_.origins.has(name)) continue;
        result_.origins.fail(
            {key.full_name()},
            std::string(key.key->name) + ": missing required key '" + std::string(inner.name) + "'",
            std::string(inner.name) + ": " + std::string(inner.meaning));
      }
    }
  }
  [[nodiscard]] bool holds_options(const TomlEntry& entry) const {
    const auto key = schema_.find(document_, entry.section, entry.key);
    return key && std::holds_alternative<OptionsSpec>(key->key->spec);
  }

  // Where a key was written, and where each key of its table was.
  void record(const std::string& name, const TomlValue& value, const std::string& where) {
    result_.origins.set(name, where);
    const auto* table = std::get_if<TomlValue::Table>(&value.data);
    for (std::size_t i = 0; table != nullptr && i < table->names.size(); ++i) {
      record(name + "." + table->names[i], table->values[i], table->where[i]);
    }
  }

  // A key of another kind: said, unless it has its default.
  void leave_unused(const Section& section, const TomlEntry& entry) {
    const SchemaKey owner = known_.owners(entry).front();
    const std::shared_ptr<void> other = schema_.make_default();
    kind_choice(section)->spec.write(other.get(), *owner.kind);
    assign(schema_, other.get(), owner, entry);
    check_value(owner, other.get(), result_.origins);
    if (toml_value(owner, other.get()) == default_value(schema_, owner)) return;
    result_.warnings.push_back(entry.where + ": [" + entry.section + "] " + entry.key +
                               " is not used by " +
                               kind_is(section, *chosen_kind(section, document_)));
  }

  [[nodiscard]] bool is_section(std::string_view name) const {
    return !name.empty() && schema_.find_section(name) != nullptr;
  }

  // The nearest key: of the same section, else one of this very name elsewhere, else any. A name
  // that is a part of a key of its section ("schedule" of pipeline_schedule) stands for that one.
  [[nodiscard]] std::string suggestion(const TomlEntry& entry, bool with_section) const {
    const auto mean = [](const std::string& key) { return "; did you mean '" + key + "'?"; };
    const std::vector<std::string_view> own = known_.names_in(entry.section);
    const auto misspelt = nearest(entry.key, std::span(own));
    if (misspelt && !with_section) return mean(*misspelt);
    const auto likely = entry.section.empty() ? std::nullopt : nearest_key(entry.key, own);
    const bool is_part = likely && likely->find(entry.key) != std::string::npos;
    const std::vector<std::string> elsewhere = known_.full_names(entry.key);
    if (!misspelt && !is_part && !elsewhere.empty() && !entry.key.empty()) {
      return mean(elsewhere.front());
    }
    if (likely) return mean((with_section ? entry.section + "." : "") + *likely);
    const std::vector<std::string> all = known_.full_names();
    if (const auto any = nearest(full_name(entry), std::span(all))) return mean(*any);
    return "";
  }

  [[noreturn]] void fail_unknown_key(const TomlEntry& entry) const {
    const bool from_override = entry.where.starts_with("--set ");
    if (entry.section.empty() && is_section(entry.key)) {
      throw UsageError(
          entry.where + ": " + quote(entry.key) + " is a section: expected a table, found " +
              entry.value.describe(),
          "write [" + entry.key + "] on a line of its own, or --set " + entry.key + ".KEY=VALUE");
    }
    std::string message = entry.where + ": ";
    if (from_override) {
      message += "unknown key " + quote(full_name(entry));
    } else {
      if (!entry.section.empty()) message += "[" + entry.section + "] ";
      message += "unknown key " + quote(entry.key);
    }
    message += suggestion(entry, from_override);
    const bool known_section = is_section(entry.section);
    const std::string where =
        known_section ? "[" + entry.section + "] has " : "keys before the first section are ";
    const std::string_view section = known_section ? entry.section : std::string_view();
    throw UsageError(message, where + join(known_.names_in(section), ", "));
  }

  [[noreturn]] void fail_missing(const SchemaKey& key) const {
    std::string hint = "`troika recipe --defaults` prints an example";
    if (const auto words = allowed_words(key.key->spec); !words.empty()) {
      hint = "one of " + join(words, ", ");
    } else if (!key.key->meaning.empty()) {
      hint = std::string(key.key->name) + ": " + std::string(key.key->meaning);
    }
    result_.origins.fail({key.full_name()},
                         "missing required key '" + std::string(key.key->name) + "'", hint);
  }

  [[noreturn]] void fail_other_kind(const Section& section, const TomlEntry& entry) const {
    const Component& kind = *chosen_kind(section, document_);
    std::vector<std::string> owners;
    for (const SchemaKey& owner : known_.owners(entry))
      owners.push_back(kind_is(section, *owner.kind));
    std::vector<std::string_view> names;
    for (const SchemaKey& key : schema_.keys_of(document_)) {
      if (key.section == &section) names.push_back(key.key->name);
    }
    throw UsageError(entry.where + ": [" + entry.section + "] '" + entry.key + "' is a key of " +
                         join(owners, " and ") + ", not of " + kind_is(section, kind),
                     kind_is(section, kind) + " has " + join(names, ", "));
  }

  const Schema& schema_;
  void* document_;
  KnownKeys known_;
  ReadReport result_;
};

}  // namespace

ReadReport read_document(const Schema& schema, void* document, std::string_view text,
                         std::string_view source_name, std::span<const std::string> overrides) {
  return Reader(schema, document).read(text, source_name, overrides);
}

}  // namespace troika
