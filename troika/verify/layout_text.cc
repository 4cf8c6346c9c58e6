#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/config/assign.h>
#include <troika/config/nearest_key.h>
#include <troika/recipe/refusals.h>
#include <troika/recipe/resolve.h>
#include <troika/recipe/validate.h>
#include <troika/verify/layout_text.h>

#include <algorithm>
#include <set>

namespace troika {
namespace {

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

// Blanks stand around the separators, never between two words: [1 2] would read as 12.
void refuse_blanks(std::string_view text) {
  constexpr std::string_view kSeparators = "=,;[]";
  const auto joins = [&](std::size_t at) {
    return at < text.size() && kSeparators.find(text[at]) == std::string_view::npos;
  };
  for (std::size_t at = text.find(' '); at != std::string_view::npos; at = text.find(' ', at)) {
    const std::size_t next = text.find_first_not_of(' ', at);
    if (at > 0 && joins(at - 1) && joins(next)) {
      throw UsageError("--layouts " + quote(text) + ": a blank separates no keys",
                       "commas do, and semicolons separate layouts: as in --layouts "
                       "\"tensor=2,pipeline=2; data=4\"");
    }
    at = std::min(next, text.size());
  }
}

constexpr std::string_view kMicrobatch = "micro_batch_size";

// The keys that a layout is made of.
std::vector<std::string_view> layout_keys() {
  std::vector<std::string_view> keys;
  for (const Key& key : recipe_schema().find_section("parallel")->keys) keys.push_back(key.name);
  keys.push_back(kMicrobatch);
  return keys;
}

// "zero_stage=3" of --layouts, as an entry of a recipe.
TomlEntry entry_of(const std::string& setting) {
  const std::string where = "--layouts " + quote(setting);
  const std::string key = setting.substr(0, setting.find('='));
  if (key.empty() || key == setting) {
    throw UsageError(where + ": expected KEY=VALUE", "as in --layouts \"tensor=2; data=2\"");
  }
  const std::vector<std::string_view> keys = layout_keys();
  if (std::ranges::count(keys, key) == 0) {
    const auto likely = nearest_key(key, keys);
    throw UsageError(
        where + ": unknown key " + quote(key) + (likely ? "; did you mean '" + *likely + "'?" : ""),
        "a layout has " + join(keys, ", "));
  }
  TomlEntry entry = parse_override((key == kMicrobatch ? "train." : "parallel.") + setting);
  entry.where = where;
  return entry;
}

// One layout: `recipe` has one rank's.
TrialLayout parse_layout(const std::string& words, Recipe recipe, int most_ranks) {
  Origins origins("--layouts " + quote(words));
  std::set<std::string> seen;
  for (const std::string& setting : split(words, ',')) {
    const TomlEntry entry = entry_of(setting);
    if (!seen.insert(entry.key).second) {
      throw UsageError("--layouts " + quote(words) + ": " + entry.key + " is given twice",
                       "leave one of them out; semicolons separate layouts");
    }
    const Schema& schema = recipe_schema();
    assign(schema, &recipe, *schema.find(&recipe, entry.section, entry.key), entry);
    origins.set(entry.section + "." + entry.key, entry.where);
  }
  validate(recipe, origins);
  refuse_unsupported(recipe, origins);
  ParallelOptions& parallel = recipe.parallel;
  if (!parallel.data) parallel.data = largest_data_axis(parallel, most_ranks);
  const TrialLayout layout{parallel, recipe.train.micro_batch_size};
  static_cast<void>(resolve_recipe(recipe, layout.ranks(), origins));
  return simplified(layout);
}

}  // namespace

std::string describe(const TrialLayout& layout, const Recipe& recipe) {
  const ParallelOptions plain;
  const ParallelOptions& own = layout.parallel;
  std::vector<std::string> words;
  const auto add = [&](const std::string& key, const std::string& value) {
    words.push_back(key + "=" + value);
  };
  if (own.data != 1) add("data", std::to_string(own.data.value_or(1)));
  if (own.tensor != 1) add("tensor", std::to_string(own.tensor));
  if (own.pipeline != 1) {
    add("pipeline", std::to_string(own.pipeline));
    add("pipeline_schedule", own.pipeline_schedule);
    if (own.virtual_stages != 1) add("virtual_stages", std::to_string(own.virtual_stages));
    std::vector<std::string> units;
    for (const std::int64_t count : own.stage_units) units.push_back(std::to_string(count));
    if (!units.empty()) add("stage_units", "[" + join(units, ",") + "]");
  }
  if (own.zero_stage != 0) add("zero_stage", std::to_string(own.zero_stage));
  if (own.shard != 0) add("shard", std::to_string(own.shard));
  if (own.cut_gradients != plain.cut_gradients) {
    add("cut_gradients", std::string(name_of(own.cut_gradients)));
  }
  if (own.activation_checkpoint != plain.activation_checkpoint) {
    add("activation_checkpoint", std::string(name_of(own.activation_checkpoint)));
  }
  if (layout.micro_batch_size != recipe.train.micro_batch_size) {
    add("micro_batch_size", std::to_string(layout.micro_batch_size));
  }
  return words.empty() ? "data=1" : join(words, ",");
}

std::vector<TrialLayout> parse_layouts(std::string_view text, const Recipe& recipe,
                                       int most_ranks) {
  Recipe plain = recipe;
  plain.parallel = {};
  plain.parallel.data = 1;
  refuse_blanks(text);
  std::vector<TrialLayout> layouts;
  for (const std::string& words : split(text, ';')) {
    layouts.push_back(parse_layout(words, plain, most_ranks));
  }
  if (layouts.empty()) {
    throw UsageError("--layouts names none",
                     "as in --layouts \"tensor=2; data=2,zero_stage=3\", or auto, or all");
  }
  return layouts;
}

}  // namespace troika
