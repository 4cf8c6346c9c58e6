#include <troika/base/error.h>
#include <troika/base/share.h>
#include <troika/base/text.h>
#include <troika/config/choices.h>
#include <troika/config/layout.h>
#include <troika/config/recipe_file.h>
#include <troika/train/job.h>
#include <troika/train/layouts.h>

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

namespace troika {
namespace {

constexpr std::int64_t kLargestAxis = 4;

// With the tensor axis partial sums of products are added in another order.
constexpr double kTauOfTensor = 1e-11;

struct ScheduleChoice {
  PipelineScheduleKind kind = PipelineScheduleKind::k1F1B;
  std::int64_t virtual_stages = 1;
};

struct ZeroChoice {
  std::int64_t stage = 0;
  std::int64_t shard = 0;
};

std::vector<ScheduleChoice> schedules_for(std::int64_t pipeline) {
  using Kind = PipelineScheduleKind;
  if (pipeline == 1) return {ScheduleChoice()};
  return {{Kind::kGpipe, 1}, {Kind::kGpipe, 2}, {Kind::k1F1B, 1}, {Kind::kInterleaved1F1B, 2},
          {Kind::kZbH1, 1},  {Kind::kZbH2, 1},  {Kind::kZbV, 1}};
}

std::vector<ZeroChoice> zeros_for(std::int64_t data) {
  if (data == 1) return {ZeroChoice()};
  std::vector<ZeroChoice> choices = {{0, 0}, {1, 0}, {2, 0}, {3, 0}};
  if (data == 4) choices.insert(choices.end(), {{1, 2}, {2, 2}, {3, 2}});
  return choices;
}

// Samples of the first rank of a data axis, which has the most.
std::int64_t most_samples(const Recipe& recipe, std::int64_t data) {
  return share_of(recipe.train.global_batch_size, 0, data).count;
}

// All of a rank's samples at once, and in several parts.
std::vector<std::int64_t> microbatches_for(const Recipe& recipe, std::int64_t data) {
  const std::int64_t most = most_samples(recipe, data);
  if (most <= 1) return {1};
  return {most, std::min((most + 1) / 2, recipe.train.micro_batch_size)};
}

bool is_possible(const Recipe& recipe, const TrialLayout& layout) {
  try {
    static_cast<void>(resolve_recipe(recipe_on(recipe, layout), layout.ranks()));
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

void add_layouts(const Recipe& recipe, const ParallelRecipe& axes,
                 std::vector<TrialLayout>& layouts) {
  using Checkpoint = ActivationCheckpoint;
  for (const ScheduleChoice schedule : schedules_for(axes.pipeline)) {
    for (const ZeroChoice zero : zeros_for(*axes.data)) {
      for (const auto checkpoint : {Checkpoint::kNone, Checkpoint::kSelective, Checkpoint::kFull}) {
        for (const std::int64_t samples : microbatches_for(recipe, *axes.data)) {
          TrialLayout layout{axes, samples};
          layout.parallel.pipeline_schedule = schedule.kind;
          layout.parallel.virtual_stages = schedule.virtual_stages;
          layout.parallel.zero_stage = zero.stage;
          layout.parallel.shard = zero.shard;
          layout.parallel.activation_checkpoint = checkpoint;
          if (is_possible(recipe, layout)) layouts.push_back(std::move(layout));
        }
      }
    }
  }
}

// Settings of axes of size 1 have no effect.
TrialLayout simplified(TrialLayout layout) {
  const ParallelRecipe plain;
  ParallelRecipe& parallel = layout.parallel;
  parallel.data = parallel.data.value_or(1);
  if (parallel.pipeline == 1) {
    parallel.pipeline_schedule = plain.pipeline_schedule;
    parallel.virtual_stages = plain.virtual_stages;
    parallel.stage_units = {};
  }
  if (parallel.data == 1) {
    parallel.zero_stage = plain.zero_stage;
    parallel.shard = plain.shard;
  }
  return layout;
}

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

// Pairs of settings, as positions in a table of which setting has met which.
class PairTable {
 public:
  explicit PairTable(std::span<const std::vector<int>> rows) {
    for (const std::vector<int>& row : rows) {
      std::vector<std::size_t>& places = places_.emplace_back();
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::pair setting(i, row[i]);
        const auto known = std::ranges::find(settings_, setting);
        places.push_back(static_cast<std::size_t>(known - settings_.begin()));
        if (known == settings_.end()) settings_.push_back(setting);
      }
    }
    met_.assign(settings_.size() * settings_.size(), false);
  }

  // How many pairs of a row have not met yet.
  [[nodiscard]] int news_of(std::size_t row) const {
    int count = 0;
    for_each_pair(row, [&](std::size_t pair) { count += met_[pair] ? 0 : 1; });
    return count;
  }
  void take(std::size_t row) {
    for_each_pair(row, [&](std::size_t pair) { met_[pair] = true; });
  }

 private:
  template <class Function>
  void for_each_pair(std::size_t row, const Function& function) const {
    const std::vector<std::size_t>& places = places_[row];
    for (std::size_t i = 0; i < places.size(); ++i) {
      for (std::size_t j = i + 1; j < places.size(); ++j) {
        function(places[i] * settings_.size() + places[j]);
      }
    }
  }

  std::vector<std::pair<std::size_t, int>> settings_;  // which one, and its number
  std::vector<std::vector<std::size_t>> places_;       // in settings_, by row
  std::vector<bool> met_;
};

}  // namespace

int TrialLayout::ranks() const {
  return static_cast<int>(parallel.data.value_or(1) * parallel.tensor * parallel.pipeline *
                          parallel.context);
}

Recipe recipe_on(const Recipe& recipe, const TrialLayout& layout) {
  Recipe result = recipe;
  result.parallel = layout.parallel;
  result.train.micro_batch_size = layout.micro_batch_size;
  return result;
}

TrialLayout reference_layout(const Recipe& recipe) {
  TrialLayout layout;
  layout.parallel.data = 1;
  layout.micro_batch_size = recipe.train.micro_batch_size;
  return layout;
}

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

std::vector<TrialLayout> all_layouts(const Recipe& recipe, int most_ranks) {
  std::vector<TrialLayout> layouts;
  for (std::int64_t data = 1; data <= kLargestAxis; ++data) {
    for (std::int64_t tensor = 1; tensor <= kLargestAxis; ++tensor) {
      for (std::int64_t pipeline = 1; pipeline <= kLargestAxis; ++pipeline) {
        if (data * tensor * pipeline > most_ranks) continue;
        ParallelRecipe axes;
        axes.data = data;
        axes.tensor = tensor;
        axes.pipeline = pipeline;
        add_layouts(recipe, axes, layouts);
      }
    }
  }
  std::ranges::stable_sort(layouts, {}, &TrialLayout::ranks);
  return layouts;
}

std::vector<int> settings_of(const TrialLayout& layout, const Recipe& recipe) {
  const ParallelRecipe& own = layout.parallel;
  const auto number = [](std::int64_t value) { return static_cast<int>(value); };
  const bool one_microbatch = layout.micro_batch_size >= most_samples(recipe, own.data.value_or(1));
  return {number(own.data.value_or(1)),
          number(own.tensor),
          number(own.pipeline),
          number(static_cast<std::int64_t>(own.pipeline_schedule) * 100 + own.virtual_stages),
          number(own.zero_stage * 100 + own.shard),
          number(static_cast<std::int64_t>(own.activation_checkpoint)),
          one_microbatch ? 0 : 1};
}

std::vector<std::size_t> cover_pairs(std::span<const std::vector<int>> rows) {
  PairTable table(rows);
  // What is new in a row can only become less: a row that is still the best at a second look is.
  using Entry = std::tuple<int, std::size_t>;  // news, and the row counted from the end
  std::priority_queue<Entry> queue;
  for (std::size_t i = 0; i < rows.size(); ++i) queue.emplace(table.news_of(i), rows.size() - i);
  std::vector<std::size_t> chosen;
  while (!queue.empty()) {
    const auto [news, from_end] = queue.top();
    queue.pop();
    const std::size_t row = rows.size() - from_end;
    const int still = table.news_of(row);
    if (still == 0) continue;
    if (still < news) {
      queue.emplace(still, from_end);
      continue;
    }
    table.take(row);
    chosen.push_back(row);
  }
  std::ranges::sort(chosen);
  return chosen;
}

std::vector<TrialLayout> covering_layouts(const Recipe& recipe, int most_ranks) {
  const std::vector<TrialLayout> all = all_layouts(recipe, most_ranks);
  std::vector<std::vector<int>> rows;
  for (const TrialLayout& layout : all) rows.push_back(settings_of(layout, recipe));
  std::vector<TrialLayout> layouts;
  for (const std::size_t i : cover_pairs(rows)) layouts.push_back(all[i]);
  return layouts;
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

Tolerance tolerance_of(const TrialLayout& layout) {
  Tolerance tolerance;
  if (layout.parallel.tensor > 1) tolerance.tau = kTauOfTensor;
  return tolerance;
}

std::optional<TrialLayout> bit_twin(const TrialLayout& layout, const Recipe& recipe) {
  TrialLayout twin = layout;
  twin.parallel.zero_stage = 0;
  twin.parallel.activation_checkpoint = ActivationCheckpoint::kNone;
  const bool tied = recipe.model.kind == ModelKind::kGpt && recipe.model.tied_embeddings;
  if (!tied) twin.parallel.pipeline = 1;
  twin = simplified(twin);
  if (twin == layout) return std::nullopt;
  return twin;
}

}  // namespace troika
