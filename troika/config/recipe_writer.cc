#include <troika/base/text.h>
#include <troika/config/fields.h>
#include <troika/config/recipe_file.h>
#include <troika/config/toml_text.h>

#include <algorithm>

namespace troika {
namespace {

std::string assignment(const Recipe& recipe, const Field& field) {
  return std::string(field.key) + " = " + toml_value(recipe, field);
}

// Choices, then how the default comes about, then what the key means.
std::string comment(const Field& field) {
  std::vector<std::string> parts;
  if (const auto* choice = std::get_if<ChoiceSpec>(&field.spec)) {
    parts.push_back(join(choice->allowed_names(), " | "));
  }
  if (!field.derived.empty()) parts.push_back("default: " + std::string(field.derived));
  if (!field.meaning.empty()) parts.emplace_back(field.meaning);
  std::string text = join(parts, "; ");
  std::erase(text, '`');
  return text;
}

std::string with_comment(std::string line, const std::string& text) {
  constexpr std::size_t kColumn = 34;
  if (line.size() < kColumn) line.resize(kColumn - 1, ' ');
  return line + " # " + text + "\n";
}

// The keys of the first kind's [model] that the example cannot show.
std::string other_model_kinds() {
  std::vector<std::string_view> keys;
  for (const Field& field : fields()) {
    if (field.model == ModelKind::kMlp) keys.push_back(field.key);
  }
  return "# kind = \"mlp\" takes these keys instead: " + join(keys, ", ") + "\n";
}

}  // namespace

std::string to_toml(const Recipe& recipe, const Provenance& provenance) {
  std::string text;
  std::string_view section;
  for (const Field& field : fields()) {
    if (!field.applies_to(recipe.model.kind)) continue;
    if (field.section != section) text += "\n[" + std::string(field.section) + "]\n";
    section = field.section;
    text += assignment(recipe, field) + "\n";
  }
  if (!provenance.empty()) text += "\n[provenance]\n";
  for (const auto& [key, value] : provenance) {
    text += toml_string(key) + " = " + toml_string(value) + "\n";
  }
  return text;
}

std::string default_recipe_toml() {
  Recipe recipe = default_recipe(ModelKind::kGpt);
  recipe.name = "quickstart";
  std::string text =
      "# Every key with its default. Required are name, [model] kind with its sizes, [data] kind\n"
      "# and, unless that is random, paths.\n";
  std::string_view section;
  for (const Field& field : fields()) {
    if (!field.applies_to(ModelKind::kGpt)) continue;
    if (field.section != section) {
      if (section == "model") text += other_model_kinds();
      text += "\n[" + std::string(field.section) + "]\n";
    }
    section = field.section;
    text += with_comment(assignment(recipe, field), comment(field));
  }
  return text;
}

}  // namespace troika
