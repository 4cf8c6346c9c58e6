#include <troika/base/text.h>
#include <troika/config/toml_text.h>
#include <troika/config/writer.h>

#include <algorithm>

namespace troika {
namespace {

std::string assignment(const SchemaKey& key, const void* document) {
  return std::string(key.key->name) + " = " + toml_value(key, document);
}

// Choices, then how the default comes about, then what the key means.
std::string comment(const Key& key) {
  std::vector<std::string> parts;
  if (const auto words = allowed_words(key.spec); !words.empty()) {
    parts.push_back(join(words, " | "));
  }
  if (!key.derived.empty()) parts.push_back("default: " + std::string(key.derived));
  if (!key.meaning.empty()) parts.emplace_back(key.meaning);
  std::string text = join(parts, "; ");
  std::erase(text, '`');
  return text;
}

std::string with_comment(std::string line, const std::string& text) {
  constexpr std::size_t kColumn = 34;
  if (line.size() < kColumn) line.resize(kColumn - 1, ' ');
  return line + " # " + text + "\n";
}

// The keys that the section's other kinds have instead of the chosen one's.
std::string other_kinds(const Section& section, const void* document) {
  const std::optional<KindChoice> choice = kind_choice(section);
  if (!choice) return "";
  std::string text;
  for (const Component* kind : choice->spec.all()) {
    if (kind == choice->spec.read(document)) continue;
    std::vector<std::string_view> names;
    for (const Key& key : kind->keys()) names.push_back(key.name);
    text += "# " + kind_text(*choice, *kind) + " " +
            (names.empty() ? "has no keys of its own"
                           : "takes these keys instead: " + join(names, ", ")) +
            "\n";
  }
  return text;
}

std::string code(std::string_view text) {
  return "`" + std::string(text) + "`";
}

// A bar would end the cell.
std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

std::string allowed(const Spec& spec) {
  std::vector<std::string> words;
  for (const std::string_view word : allowed_words(spec)) words.push_back(code(word));
  return words.empty() ? describe_range(spec) : join(words, ", ");
}

std::string default_cell(const Schema& schema, const SchemaKey& key) {
  if (key.key->is_required) return "*required*";
  if (!key.key->derived.empty()) return code(key.key->derived);
  return code(default_value(schema, key));
}

std::string row(const Schema& schema, const SchemaKey& key) {
  return "| " + code(key.key->name) + " | " + type_name(key.key->spec) + " | " +
         default_cell(schema, key) + " | " + allowed(key.key->spec) + " | " +
         cell(key.key->meaning) + " |\n";
}

std::string heading(const SchemaKey& key) {
  const std::string_view name = key.section->name;
  std::string text = name.empty() ? "Before the first section" : "`[" + std::string(name) + "]`";
  if (key.kind != nullptr) {
    text += " with " + code(kind_text(*kind_choice(*key.section), *key.kind));
  }
  return "\n## " + text +
         "\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
}

}  // namespace

std::string write_document(const Schema& schema, const void* document,
                           const Provenance& provenance) {
  std::string text;
  std::string_view section;
  for (const SchemaKey& key : schema.keys_of(document)) {
    if (key.section->name != section) text += "\n[" + std::string(key.section->name) + "]\n";
    section = key.section->name;
    text += assignment(key, document) + "\n";
  }
  if (!provenance.empty()) text += "\n[provenance]\n";
  for (const auto& [key, value] : provenance) {
    text += toml_string(key) + " = " + toml_string(value) + "\n";
  }
  return text;
}

std::string write_commented(const Schema& schema, const void* document) {
  std::string text;
  const Section* section = nullptr;
  for (const SchemaKey& key : schema.keys_of(document)) {
    if (key.section != section) {
      if (section != nullptr) text += other_kinds(*section, document);
      if (!key.section->name.empty()) text += "\n[" + std::string(key.section->name) + "]\n";
    }
    section = key.section;
    text += with_comment(assignment(key, document), comment(*key.key));
  }
  if (section != nullptr) text += other_kinds(*section, document);
  return text;
}

std::string reference_tables(const Schema& schema) {
  std::string text;
  SchemaKey previous{};
  for (const SchemaKey& key : schema.all_keys()) {
    if (previous.section != key.section || previous.kind != key.kind) text += heading(key);
    text += row(schema, key);
    previous = key;
  }
  return text;
}

}  // namespace troika
