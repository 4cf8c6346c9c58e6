#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/config/choices.h>
#include <troika/config/layout.h>
#include <troika/config/recipe_file.h>
#include <troika/train/layout_text.h>

#include <utility>

namespace troika {
namespace {

// "zero_stage=3" -> "parallel.zero_stage=3"
std::string override_of(std::string_view setting) {
  const bool of_training = setting.starts_with("micro_batch_size");
  return (of_training ? "train." : "parallel.") + std::string(setting);
}

// Parts between separators that stand outside of brackets, without the spaces around them.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else if (c != ' ') {
      parts.back() += c;
    }
  }
  std::erase(parts, "");
  return parts;
}

}  // namespace

std::string describe(const TrialLayout& layout, const Recipe& recipe) {
  const ParallelRecipe plain;
  const ParallelRecipe& own = layout.parallel;
  std::vector<std::string> words;
  const auto add = [&](const std::string& key, const std::string& value) {
    words.push_back(key + "=" + value);
  };
  if (own.data != 1) add("data", std::to_string(own.data.value_or(1)));
  if (own.tensor != 1) add("tensor", std::to_string(own.tensor));
  if (own.pipeline != 1) {
    add("pipeline", std::to_string(own.pipeline));
    add("pipeline_schedule", std::string(name_of(own.pipeline_schedule)));
    if (own.virtual_stages != 1) add("virtual_stages", std::to_string(own.virtual_stages));
    std::vector<std::string> units;
    for (const std::int64_t count : own.stage_units) units.push_back(std::to_string(count));
    if (!units.empty()) add("stage_units", "[" + join(units, ",") + "]");
  }
  if (own.zero_stage != 0) add("zero_stage", std::to_string(own.zero_stage));
  if (own.shard != 0) add("shard", std::to_string(own.shard));
  if (own.activation_checkpoint != plain.activation_checkpoint) {
    add("activation_checkpoint", std::string(name_of(own.activation_checkpoint)));
  }
  if (layout.micro_batch_size != recipe.train.micro_batch_size) {
    add("micro_batch_size", std::to_string(layout.micro_batch_size));
  }
  return words.empty() ? "data=1" : join(words, ",");
}

std::vector<TrialLayout> parse_layouts(std::string_view text, const Recipe& recipe) {
  Recipe plain = recipe;
  plain.parallel = {};
  const std::string toml = to_toml(plain);
  std::vector<TrialLayout> layouts;
  for (const std::string& words : split(text, ';')) {
    std::vector<std::string> overrides;
    for (const std::string& setting : split(words, ',')) overrides.push_back(override_of(setting));
    const Recipe parsed = parse_recipe(toml, "--layouts", overrides).recipe;
    TrialLayout layout = simplified({parsed.parallel, parsed.train.micro_batch_size});
    static_cast<void>(resolve_recipe(recipe_on(recipe, layout), layout.ranks()));
    layouts.push_back(std::move(layout));
  }
  if (layouts.empty()) {
    throw UsageError("--layouts names none",
                     "as in --layouts \"tensor=2; data=2,zero_stage=3\", or auto, or all");
  }
  return layouts;
}

}  // namespace troika
