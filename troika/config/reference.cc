#include <troika/base/text.h>
#include <troika/config/choices.h>
#include <troika/config/fields.h>
#include <troika/config/reference.h>
#include <troika/config/support.h>
#include <troika/config/toml_text.h>

#include <vector>

namespace troika {
namespace {

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

std::string allowed(const Field& field) {
  const auto* choice = std::get_if<ChoiceSpec>(&field.spec);
  if (choice == nullptr) return describe_range(field.spec);
  std::vector<std::string> words;
  for (const std::string_view name : choice->allowed_names()) words.push_back(code(name));
  return join(words, ", ");
}

std::string default_of(const Field& field) {
  if (field.is_required) return "*required*";
  if (!field.derived.empty()) return code(field.derived);
  return code(toml_value(default_recipe(field.model.value_or(ModelKind::kGpt)), field));
}

std::string row(const Field& field) {
  return "| " + code(field.key) + " | " + type_name(field.spec) + " | " + default_of(field) +
         " | " + allowed(field) + " | " + cell(field.meaning) + " |\n";
}

std::string heading(const Field& field) {
  std::string text =
      field.section.empty() ? "Before the first section" : "`[" + std::string(field.section) + "]`";
  if (field.model) text += " with `kind = \"" + std::string(name_of(*field.model)) + "\"`";
  return "\n## " + text +
         "\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
}

std::string not_yet() {
  std::string text =
      "\n## Refused until they exist\n\n| key | refused | write instead |\n|---|---|---|\n";
  for (const Refusal& refusal : refusals()) {
    text += "| " + code(refusal.key) + " | " + std::string(refusal.when) + " | " +
            code(refusal.instead) + " |\n";
  }
  return text;
}

}  // namespace

std::string recipe_reference() {
  std::string text;
  const Field* previous = nullptr;
  for (const Field& field : fields()) {
    const bool continues =
        previous != nullptr && previous->section == field.section && previous->model == field.model;
    if (!continues) text += heading(field);
    text += row(field);
    previous = &field;
  }
  return text + not_yet();
}

}  // namespace troika
