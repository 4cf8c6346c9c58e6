#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/config/assign.h>
#include <troika/config/choices.h>
#include <troika/config/fields.h>
#include <troika/config/nearest_key.h>
#include <troika/config/recipe_file.h>
#include <troika/config/toml_source.h>
#include <troika/config/validate.h>
#include <troika/config/warnings.h>

#include <algorithm>
#include <optional>
#include <set>

namespace troika {
namespace {

constexpr std::string_view kProvenance = "provenance";

std::string full_key(const TomlEntry& entry) {
  return entry.section.empty() ? entry.key : entry.section + "." + entry.key;
}

bool is_section(std::string_view name) {
  return std::ranges::count(sections(), name) != 0;
}

bool is_known(const TomlEntry& entry) {
  return std::ranges::any_of(fields(), [&](const Field& field) {
    return field.section == entry.section && field.key == entry.key;
  });
}

// That of the recipe's model, where it is known: messages then leave out the keys of other kinds.
using Kind = std::optional<ModelKind>;

bool belongs_to(const Field& field, const Kind& kind) {
  return !kind || field.applies_to(*kind);
}

// "section.key" of every field, once; those with the given key alone unless it is empty.
std::vector<std::string> known_keys(const Kind& kind, std::string_view key = {}) {
  std::vector<std::string> keys;
  for (const Field& field : fields()) {
    if (!belongs_to(field, kind)) continue;
    if (key.empty() || field.key == key) keys.push_back(field.full_key());
  }
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

std::vector<std::string_view> keys_of(std::string_view section, const Kind& kind) {
  std::set<std::string_view> seen;
  std::vector<std::string_view> keys;
  for (const Field& field : fields()) {
    if (field.section != section || !belongs_to(field, kind)) continue;
    if (seen.insert(field.key).second) keys.push_back(field.key);
  }
  return keys;
}

// The nearest key: of the same section, else one of this very name elsewhere, else any. A name that
// is a part of a key of its section ("schedule" of pipeline_schedule) stands for that one.
std::string suggestion(const TomlEntry& entry, const Kind& kind, bool with_section) {
  const auto mean = [](const std::string& key) { return "; did you mean '" + key + "'?"; };
  const std::vector<std::string_view> own = keys_of(entry.section, kind);
  const auto misspelt = nearest(entry.key, own);
  if (misspelt && !with_section) return mean(*misspelt);
  const auto likely = entry.section.empty() ? std::nullopt : nearest_key(entry.key, own);
  const bool is_part = likely && likely->find(entry.key) != std::string::npos;
  const std::vector<std::string> elsewhere = known_keys(kind, entry.key);
  if (!misspelt && !is_part && !elsewhere.empty() && !entry.key.empty()) {
    return mean(elsewhere.front());
  }
  if (likely) return mean((with_section ? entry.section + "." : "") + *likely);
  if (const auto any = nearest(full_key(entry), known_keys(kind))) {
    return mean(*any);
  }
  return "";
}

[[noreturn]] void fail_unknown_key(const TomlEntry& entry, const Kind& kind) {
  const bool from_override = entry.where.starts_with("--set ");
  if (entry.section.empty() && is_section(entry.key)) {
    throw UsageError(
        entry.where + ": " + quote(entry.key) + " is a section: expected a table, found " +
            entry.value.describe(),
        "write [" + entry.key + "] on a line of its own, or --set " + entry.key + ".KEY=VALUE");
  }
  std::string message = entry.where + ": ";
  if (from_override) {
    message += "unknown key " + quote(full_key(entry));
  } else {
    if (!entry.section.empty()) message += "[" + entry.section + "] ";
    message += "unknown key " + quote(entry.key);
  }
  message += suggestion(entry, kind, from_override);
  const std::string where = entry.section.empty() || !is_section(entry.section)
                                ? "keys before the first section are "
                                : "[" + entry.section + "] has ";
  const std::string_view section = is_section(entry.section) ? entry.section : std::string_view();
  throw UsageError(message, where + join(keys_of(section, kind), ", "));
}

void check_sections(const TomlSource& source) {
  for (const TomlSection& section : source.sections) {
    if (section.name == kProvenance || is_section(section.name)) continue;
    std::string message = section.where + ": unknown section [" +
                          quote(section.name).substr(1, quote(section.name).size() - 2) + "]";
    if (const auto likely = nearest(section.name, sections())) {
      message += "; did you mean [" + *likely + "]?";
    }
    throw UsageError(message, "sections are " + join(sections(), ", "));
  }
}

// The kind that the last of these entries names; nothing where none does.
Kind kind_named_by(const std::vector<TomlEntry>& entries) {
  Kind kind;
  for (const TomlEntry& entry : entries) {
    const auto* name = std::get_if<std::string>(&entry.value.data);
    if (full_key(entry) != "model.kind" || name == nullptr) continue;
    const auto names = names_of<ModelKind>();
    const auto found = std::ranges::find(names, *name);
    if (found != names.end()) kind = static_cast<ModelKind>(found - names.begin());
  }
  return kind;
}

// The file's entries with the overrides in their places.
std::vector<TomlEntry> apply_overrides(std::vector<TomlEntry> entries,
                                       std::span<const std::string> overrides) {
  std::erase_if(entries, [](const TomlEntry& entry) { return entry.section == kProvenance; });
  for (const TomlEntry& entry : entries) {
    if (!is_known(entry)) fail_unknown_key(entry, kind_named_by(entries));
  }
  for (const std::string& argument : overrides) {
    TomlEntry entry = parse_override(argument);
    if (!is_known(entry)) fail_unknown_key(entry, kind_named_by(entries));
    const auto same = std::ranges::find_if(entries, [&](const TomlEntry& other) {
      return other.section == entry.section && other.key == entry.key;
    });
    if (same != entries.end()) {
      *same = std::move(entry);
    } else {
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

[[noreturn]] void fail_missing(const Origins& origins, const Field& field) {
  std::string hint = "`troika recipe --defaults` prints an example";
  if (const auto* choice = std::get_if<ChoiceSpec>(&field.spec)) {
    hint = "one of " + join(choice->allowed_names(), ", ");
  } else if (!field.meaning.empty()) {
    hint = std::string(field.key) + ": " + std::string(field.meaning);
  }
  origins.fail({field.full_key()}, "missing required key '" + std::string(field.key) + "'", hint);
}

// The kind comes first: it says which keys there are.
ModelKind read_model_kind(const std::vector<TomlEntry>& entries, const Origins& origins) {
  const Field& field = *find_field("model", "kind", ModelKind::kGpt);
  for (const TomlEntry& entry : entries) {
    if (full_key(entry) != "model.kind") continue;
    Recipe recipe;
    assign(recipe, field, entry);
    return recipe.model.kind;
  }
  fail_missing(origins, field);
}

[[noreturn]] void fail_other_kind(const TomlEntry& entry, ModelKind kind) {
  std::vector<std::string_view> keys;
  std::string owner;
  for (const Field& field : fields()) {
    if (field.section != entry.section) continue;
    if (field.applies_to(kind)) keys.push_back(field.key);
    if (field.key == entry.key) owner = name_of(*field.model);
  }
  throw UsageError(entry.where + ": [" + entry.section + "] '" + entry.key +
                       "' is a key of kind = \"" + owner + "\", not of kind = \"" +
                       std::string(name_of(kind)) + "\"",
                   "kind = \"" + std::string(name_of(kind)) + "\" has " + join(keys, ", "));
}

void derive_attention(ModelRecipe& model, const Origins& origins) {
  if (!origins.has("model.kv_heads")) model.kv_heads = model.heads;
  if (origins.has("model.head_dim") || model.heads < 1 || model.dim < 1) return;
  if (model.dim % model.heads != 0) {
    const std::int64_t below = model.dim / model.heads * model.heads;
    std::string works = "write dim = ";
    if (below > 0) works += std::to_string(below) + " or ";
    works += std::to_string(below + model.heads) + ", or give head_dim";
    origins.fail({"model.dim", "model.heads"},
                 "dim = " + std::to_string(model.dim) +
                     " is not a multiple of heads = " + std::to_string(model.heads),
                 works);
  }
  model.head_dim = model.dim / model.heads;
}

std::vector<std::string> checkpoint_warning(const TomlSource& source,
                                            const std::vector<TomlEntry>& entries) {
  std::string where;
  for (const TomlSection& section : source.sections) {
    if (section.name == "checkpoint") where = section.where;
  }
  for (const TomlEntry& entry : entries) {
    if (where.empty() && entry.section == "checkpoint") where = entry.where;
  }
  if (where.empty()) return {};
  return {where +
          ": [checkpoint] has no effect yet: the model is saved once, at the end of the run"};
}

}  // namespace

LoadedRecipe parse_recipe(std::string_view text, std::string_view source_name,
                          std::span<const std::string> overrides, KnownRanks ranks,
                          EngineUse engine) {
  TomlSource source = parse_toml(text, source_name);
  check_sections(source);
  const std::vector<TomlEntry> entries = apply_overrides(source.entries, overrides);

  LoadedRecipe loaded{{}, {}, Origins(std::string(source_name))};
  for (const TomlEntry& entry : entries) loaded.origins.set(full_key(entry), entry.where);
  const ModelKind kind = read_model_kind(entries, loaded.origins);
  loaded.recipe = default_recipe(kind);
  for (const TomlEntry& entry : entries) {
    const Field* field = find_field(entry.section, entry.key, kind);
    if (field == nullptr) fail_other_kind(entry, kind);
    assign(loaded.recipe, *field, entry);
  }
  for (const Field& field : fields()) {
    const bool missing = field.is_required && !loaded.origins.has(field.full_key());
    if (missing && field.applies_to(kind)) fail_missing(loaded.origins, field);
  }
  if (kind == ModelKind::kGpt) derive_attention(loaded.recipe.model, loaded.origins);
  validate(loaded.recipe, loaded.origins, ranks);
  refuse_unsupported(loaded.recipe, loaded.origins, engine);

  loaded.warnings = checkpoint_warning(source, entries);
  for (std::string& warning : warnings_of(loaded.recipe, loaded.origins)) {
    loaded.warnings.push_back(std::move(warning));
  }
  return loaded;
}

LoadedRecipe load_recipe(const std::filesystem::path& file, std::span<const std::string> overrides,
                         KnownRanks ranks, EngineUse engine) {
  std::string text;
  try {
    text = read_file(file, kMaxRecipeBytes);
  } catch (const DataError& error) {
    // A recipe is part of how the command was called, not of its data.
    throw UsageError(error.what(), error.hint());
  }
  return parse_recipe(text, file.string(), overrides, ranks, engine);
}

}  // namespace troika
