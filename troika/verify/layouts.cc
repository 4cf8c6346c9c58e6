#include <troika/base/error.h>
#include <troika/base/index_range.h>
#include <troika/base/text.h>
#include <troika/recipe/resolve.h>
#include <troika/schedule/generate.h>
#include <troika/verify/layout_text.h>
#include <troika/verify/layouts.h>
#include <troika/verify/pairwise.h>

#include <algorithm>
#include <string>
#include <utility>

namespace troika {
namespace {

constexpr std::int64_t kLargestAxis = 4;

// With the tensor axis partial sums of products are added in another order.
constexpr double kTauOfTensor = 1e-11;

struct ScheduleChoice {
  std::string name = ParallelOptions().pipeline_schedule;
  std::int64_t virtual_stages = 1;
};

struct ZeroChoice {
  std::int64_t stage = 0;
  std::int64_t shard = 0;
  CutGradients cut = CutGradients::kLastMicrobatch;
};

// Whether the schedule with one virtual stage a rank is another one.
bool equals_another(std::string_view name) {
  return std::ranges::any_of(schedule_names(), [&](std::string_view other) {
    const auto instead = schedules_instead(other, 2);
    return std::ranges::count(instead, name) > 0;
  });
}

std::vector<ScheduleChoice> schedules_for(std::int64_t pipeline) {
  if (pipeline == 1) return {ScheduleChoice()};
  std::vector<ScheduleChoice> choices;
  for (const std::string_view name : schedule_names()) {
    const bool takes_two = min_virtual_stages(name) == 1 && max_virtual_stages(name) > 1;
    if (!takes_two || !equals_another(name)) choices.push_back({std::string(name), 1});
    if (takes_two) choices.push_back({std::string(name), 2});
  }
  return choices;
}

std::vector<ZeroChoice> zeros_for(std::int64_t data) {
  if (data == 1) return {ZeroChoice()};
  constexpr auto kEach = CutGradients::kEachMicrobatch;
  std::vector<ZeroChoice> choices = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {2, 0, kEach}, {3, 0, kEach}};
  if (data == 4) choices.insert(choices.end(), {{1, 2}, {2, 2}, {3, 2}, {2, 2, kEach}});
  return choices;
}

// Samples of the first rank of a data axis, which has the most.
std::int64_t most_samples(const Recipe& recipe, std::int64_t data) {
  return even_split(recipe.train.global_batch_size, 0, data).count;
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

void add_layouts(const Recipe& recipe, const ParallelOptions& axes,
                 std::vector<TrialLayout>& layouts) {
  using Checkpoint = ActivationCheckpoint;
  for (const ScheduleChoice& schedule : schedules_for(axes.pipeline)) {
    for (const ZeroChoice zero : zeros_for(*axes.data)) {
      for (const auto checkpoint : {Checkpoint::kNone, Checkpoint::kSelective, Checkpoint::kFull}) {
        for (const std::int64_t samples : microbatches_for(recipe, *axes.data)) {
          const bool one_microbatch = samples >= most_samples(recipe, *axes.data);
          if (one_microbatch && zero.cut == CutGradients::kEachMicrobatch) continue;
          TrialLayout layout{axes, samples};
          layout.parallel.pipeline_schedule = schedule.name;
          layout.parallel.virtual_stages = schedule.virtual_stages;
          layout.parallel.zero_stage = zero.stage;
          layout.parallel.shard = zero.shard;
          layout.parallel.cut_gradients = zero.cut;
          layout.parallel.activation_checkpoint = checkpoint;
          if (is_possible(recipe, layout)) layouts.push_back(std::move(layout));
        }
      }
    }
  }
}

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

TrialLayout simplified(TrialLayout layout) {
  const ParallelOptions plain;
  ParallelOptions& parallel = layout.parallel;
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
  if (parallel.zero_stage < 2) parallel.cut_gradients = plain.cut_gradients;
  return layout;
}

std::vector<TrialLayout> all_layouts(const Recipe& recipe, int most_ranks) {
  std::vector<TrialLayout> layouts;
  for (std::int64_t data = 1; data <= kLargestAxis; ++data) {
    for (std::int64_t tensor = 1; tensor <= kLargestAxis; ++tensor) {
      for (std::int64_t pipeline = 1; pipeline <= kLargestAxis; ++pipeline) {
        if (data * tensor * pipeline > most_ranks) continue;
        ParallelOptions axes;
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

// Its place among the schedules.
std::int64_t index_of(std::string_view schedule) {
  return std::ranges::find(schedule_names(), schedule) - schedule_names().begin();
}

std::vector<int> settings_of(const TrialLayout& layout, const Recipe& recipe) {
  const ParallelOptions& own = layout.parallel;
  const auto number = [](std::int64_t value) { return static_cast<int>(value); };
  const bool one_microbatch = layout.micro_batch_size >= most_samples(recipe, own.data.value_or(1));
  return {number(own.data.value_or(1)),
          number(own.tensor),
          number(own.pipeline),
          number(index_of(own.pipeline_schedule) * 100 + own.virtual_stages),
          number(own.zero_stage * 100 + own.shard),
          number(static_cast<std::int64_t>(own.cut_gradients)),
          number(static_cast<std::int64_t>(own.activation_checkpoint)),
          one_microbatch ? 0 : 1};
}

std::vector<TrialLayout> pairwise_layouts(const Recipe& recipe, int most_ranks) {
  const std::vector<TrialLayout> all = all_layouts(recipe, most_ranks);
  std::vector<std::vector<int>> rows;
  for (const TrialLayout& layout : all) rows.push_back(settings_of(layout, recipe));
  std::vector<TrialLayout> layouts;
  for (const std::size_t i : pairwise_subset(rows)) layouts.push_back(all[i]);
  return layouts;
}

std::int64_t largest_data_axis(const ParallelOptions& parallel, int most_ranks) {
  const std::int64_t others = parallel.tensor * parallel.pipeline * parallel.context;
  return std::max<std::int64_t>(most_ranks / others, 1);
}

OwnLayout own_layout(const Recipe& recipe, const ParallelOptions& asked, int most_ranks) {
  TrialLayout layout{asked, recipe.train.micro_batch_size};
  const std::int64_t data = asked.data.value_or(largest_data_axis(asked, most_ranks));
  layout.parallel.data = data;
  OwnLayout own;
  own.name = describe(simplified(layout), recipe);
  const std::string who = "the recipe's own layout (" + own.name + ")";
  const std::int64_t ranks = data * asked.tensor * asked.pipeline * asked.context;
  if (ranks > most_ranks) {
    own.left_out = who + " needs " + plural(ranks, "rank") +
                   (ranks <= kMostTrialRanks
                        ? ": --ranks " + std::to_string(ranks)
                        : ", and --ranks takes at most " + std::to_string(kMostTrialRanks));
    return own;
  }
  try {
    static_cast<void>(resolve_recipe(recipe_on(recipe, layout), layout.ranks(), Origins(who)));
    own.layout = simplified(std::move(layout));
  } catch (const UsageError& error) {
    own.left_out = error.what();
  }
  return own;
}

Tolerance tolerance_of(const TrialLayout& layout) {
  Tolerance tolerance;
  if (layout.parallel.tensor > 1) tolerance.tau = kTauOfTensor;
  return tolerance;
}

std::optional<TrialLayout> bit_reference_layout(const TrialLayout& layout, const Recipe& recipe) {
  TrialLayout reference = layout;
  reference.parallel.activation_checkpoint = ActivationCheckpoint::kNone;
  if (cuts_each_microbatch(layout.parallel)) {
    // Ranks are summed before microbatches. In a pipeline the virtual stages of a bucket come to it
    // in the schedule's order.
    if (layout.parallel.pipeline == 1) reference.parallel.zero_stage = 2;
    if (reference == layout) return std::nullopt;
    return reference;
  }
  reference.parallel.zero_stage = 0;
  const bool tied = traits_of(recipe.model).ties_first_and_last;
  if (!tied) reference.parallel.pipeline = 1;
  reference = simplified(reference);
  if (reference == layout) return std::nullopt;
  return reference;
}

}  // namespace troika
