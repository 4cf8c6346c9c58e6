#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/recipe/resolve.h>
#include <troika/recipe/timeouts.h>
#include <troika/schedule/generate.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Each axis is at most 10,000, so the product has at most 53 bits.
std::int64_t other_axes(const ParallelOptions& parallel) {
  return parallel.tensor * parallel.pipeline * parallel.context;
}

struct Axes {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
};

// The largest that the model can be split over.
Axes most_axes(const ModelOptions& model) {
  const ModelTraits traits = traits_of(model);
  return {traits.max_tensor, traits.max_stages};
}

// Whether the ranks can be filled with these axes, and the others as asked.
bool fills(const ParallelOptions& asked, Axes axes, std::int64_t ranks) {
  const std::int64_t others = axes.tensor * axes.pipeline * asked.context;
  return asked.data ? *asked.data * others == ranks : ranks % others == 0;
}

// The largest axes, none larger than asked or than `most`, with which the ranks can be filled. A
// cut by hand is for one number of stages.
std::optional<Axes> largest_axes(const ParallelOptions& asked, Axes most, std::int64_t ranks) {
  std::optional<Axes> best;
  const std::int64_t fewest_stages = asked.stage_units.empty() ? 1 : asked.pipeline;
  for (std::int64_t tensor = std::min(asked.tensor, most.tensor); tensor >= 1; --tensor) {
    if (ranks % tensor != 0) continue;
    std::int64_t pipeline = std::min(asked.pipeline, most.pipeline);
    while (pipeline >= fewest_stages && !fills(asked, {tensor, pipeline}, ranks)) --pipeline;
    if (pipeline < fewest_stages) continue;
    if (!best || tensor * pipeline > best->tensor * best->pipeline) best = {tensor, pipeline};
  }
  return best;
}

// The same, with another data axis where that asked for leaves none. Nothing where the number of
// ranks is not known.
std::optional<Axes> fitting_axes(ParallelOptions asked, Axes most, KnownRanks ranks) {
  if (!ranks) return std::nullopt;
  if (const auto axes = largest_axes(asked, most, *ranks)) return axes;
  asked.data.reset();
  return largest_axes(asked, most, *ranks);
}

// What to write for these axes, where it differs from what was asked.
std::vector<std::string> settings_of(const ParallelOptions& asked, Axes axes) {
  std::vector<std::string> settings;
  if (axes.tensor != asked.tensor) settings.push_back("tensor = " + std::to_string(axes.tensor));
  if (axes.pipeline != asked.pipeline) {
    settings.push_back("pipeline = " + std::to_string(axes.pipeline));
  }
  return settings;
}

// The same for axes that fill `ranks`.
std::vector<std::string> settings_for(const ParallelOptions& asked, Axes axes, std::int64_t ranks) {
  std::vector<std::string> settings = settings_of(asked, axes);
  if (!fills(asked, axes, ranks)) settings.emplace_back("data = \"auto\"");
  return settings;
}

void check_tensor(const Recipe& recipe, const Origins& origins, KnownRanks ranks) {
  const ParallelOptions& parallel = recipe.parallel;
  const Axes most = most_axes(recipe.model);
  if (parallel.tensor == 1 || parallel.tensor <= most.tensor) return;
  std::string instead =
      "tensor = " + std::to_string(most.tensor) + (most.tensor > 1 ? " or less" : "");
  if (const auto axes = fitting_axes(parallel, most, ranks)) {
    instead = join(settings_for(parallel, *axes, *ranks), " and ");
  }
  origins.fail(
      {"parallel.tensor"},
      "tensor = " + std::to_string(parallel.tensor) + ": " + traits_of(recipe.model).tensor_limit,
      "write " + instead);
}

// What to write for so many virtual stages a rank that a pipeline of `ranks` has no more stages
// than layers, and no more of them than its schedule takes.
std::vector<std::string> fewer_virtual_stages(const Recipe& recipe, std::int64_t ranks) {
  const ParallelOptions& parallel = recipe.parallel;
  if (ranks == 1) return {};
  const std::string& schedule = parallel.pipeline_schedule;
  const std::int64_t fewest = min_virtual_stages(schedule);
  const std::int64_t most = std::min<std::int64_t>(most_axes(recipe.model).pipeline / ranks,
                                                   max_virtual_stages(schedule));
  std::int64_t virtual_stages = std::min(parallel.virtual_stages, most);
  std::vector<std::string> settings;
  if (most < fewest) {
    const std::string instead(schedules_instead(schedule, most).front());
    settings.push_back("pipeline_schedule = \"" + instead + "\"");
  }
  if (virtual_stages != parallel.virtual_stages) {
    settings.push_back("virtual_stages = " + std::to_string(virtual_stages));
  }
  if (most >= fewest) virtual_stages = std::max(virtual_stages, fewest);
  const std::int64_t cut = std::ssize(parallel.stage_units);
  if (cut > 0 && cut != ranks * virtual_stages) settings.emplace_back("stage_units = []");
  return settings;
}

// Of no more stages than layers: with fewer virtual stages if that is enough, else with fewer ranks
// too.
std::string fewer_stages(const Recipe& recipe, KnownRanks ranks) {
  const ParallelOptions& parallel = recipe.parallel;
  const std::int64_t layers = most_axes(recipe.model).pipeline;
  ParallelOptions uncut = parallel;
  uncut.stage_units.clear();
  Axes axes{parallel.tensor, std::min(parallel.pipeline, layers)};
  const auto fitting = fitting_axes(uncut, axes, ranks);
  if (fitting) axes = *fitting;
  std::vector<std::string> settings =
      fitting ? settings_for(parallel, axes, *ranks) : settings_of(parallel, axes);
  const bool any_below = !fitting && axes.pipeline < parallel.pipeline && axes.pipeline > 1;
  for (std::string& one : fewer_virtual_stages(recipe, axes.pipeline))
    settings.push_back(std::move(one));
  return join(settings, " and ") + (any_below && settings.size() == 1 ? " or less" : "");
}

// The other schedules that take the virtual stages asked for, where there are layers and ranks for
// them.
std::vector<std::string> other_schedules(const Recipe& recipe, KnownRanks ranks) {
  const ParallelOptions& parallel = recipe.parallel;
  const std::int64_t virtual_stages = parallel.virtual_stages;
  if (parallel.pipeline * virtual_stages > most_axes(recipe.model).pipeline) return {};
  if (ranks && !fills(parallel, {parallel.tensor, parallel.pipeline}, *ranks)) return {};
  std::vector<std::string> names;
  for (const std::string_view name :
       schedules_instead(parallel.pipeline_schedule, virtual_stages)) {
    names.push_back("\"" + std::string(name) + "\"");
  }
  return names;
}

void check_virtual_stages(const Recipe& recipe, const Origins& origins, KnownRanks ranks) {
  const ParallelOptions& parallel = recipe.parallel;
  const std::int64_t most = max_virtual_stages(parallel.pipeline_schedule);
  if (parallel.virtual_stages <= most) return;
  const std::string fewer = fewer_stages(recipe, ranks);
  const std::vector<std::string> others = other_schedules(recipe, ranks);
  origins.fail(
      {"parallel.virtual_stages", "parallel.pipeline_schedule"},
      "virtual_stages = " + std::to_string(parallel.virtual_stages) + ": pipeline_schedule = \"" +
          parallel.pipeline_schedule + "\" has " + plural(most, "virtual stage") + " a rank",
      others.empty() ? "write " + fewer
                     : "write pipeline_schedule = " + join(others, " or ") + ", or " + fewer);
}

void check_stages(const Recipe& recipe, const Origins& origins, KnownRanks ranks) {
  const ParallelOptions& parallel = recipe.parallel;
  const std::int64_t virtual_stages = virtual_stages_per_rank(parallel),
                     stages = parallel.pipeline * virtual_stages;
  const ModelTraits traits = traits_of(recipe.model);
  const std::int64_t layers = traits.max_stages;
  if (stages <= layers) return;
  origins.fail(
      {"parallel.pipeline", "parallel.virtual_stages"},
      "pipeline = " + std::to_string(parallel.pipeline) + " with " +
          plural(virtual_stages, "virtual stage") + " a rank makes " + plural(stages, "stage") +
          ", and the model has " + plural(layers, "layer"),
      "write " + fewer_stages(recipe, ranks) +
          (traits.stages_key.empty() ? "" : ", or more " + std::string(traits.stages_key)));
}

// Without a pipeline nothing is cut, and the numbers may be for any; what they add up to is the
// model's all the same.
void check_cut(const Recipe& recipe, const Origins& origins) {
  const ParallelOptions& parallel = recipe.parallel;
  const auto& cut = parallel.stage_units;
  if (cut.empty()) return;
  const std::int64_t stages = parallel.pipeline * virtual_stages_per_rank(parallel);
  const ModelTraits traits = traits_of(recipe.model);
  const std::int64_t units = traits.units;
  const bool adds_up = std::accumulate(cut.begin(), cut.end(), std::int64_t{0}) == units;
  const bool is_for_any = parallel.pipeline == 1;
  if (adds_up && (is_for_any || std::ssize(cut) == stages)) return;
  origins.fail({"parallel.stage_units"},
               "stage_units: expected " + (is_for_any ? "numbers" : plural(stages, "number")) +
                   " that add up to " + plural(units, "unit") +
                   (traits.units_are.empty() ? "" : " (" + std::string(traits.units_are) + ")"),
               "[] cuts by cost");
}

// On one data rank nothing is cut, whatever the groups.
void check_shards(const ParallelOptions& parallel, const Origins& origins) {
  if (!parallel.data || *parallel.data == 1 || parallel.shard == 0) return;
  if (*parallel.data % parallel.shard == 0) return;
  // The nearest below that cuts anything, else the nearest above.
  std::int64_t works = std::min(parallel.shard, *parallel.data);
  while (*parallel.data % works != 0) --works;
  if (works == 1) works = std::min(parallel.shard, *parallel.data);
  while (*parallel.data % works != 0) ++works;
  origins.fail({"parallel.shard"},
               "shard = " + std::to_string(parallel.shard) + " does not divide the data axis of " +
                   plural(*parallel.data, "rank"),
               "write shard = " + std::to_string(works) + ", or 0 to shard over the whole axis");
}

void check_cut_gradients(const ParallelOptions& parallel, const Origins& origins) {
  if (!cuts_each_microbatch(parallel) || !splits_backward(parallel)) return;
  origins.fail({"parallel.cut_gradients", "parallel.pipeline_schedule"},
               "cut_gradients = \"each_microbatch\": pipeline_schedule = \"" +
                   parallel.pipeline_schedule + "\" needs whole gradients",
               "write cut_gradients = \"last_microbatch\", or pipeline_schedule = \"1f1b\"");
}

void check_checkpoint(const Recipe& recipe, const Origins& origins) {
  const bool selective = recipe.parallel.activation_checkpoint == ActivationCheckpoint::kSelective;
  if (!selective || traits_of(recipe.model).has_attention) return;
  origins.fail({"parallel.activation_checkpoint"},
               "activation_checkpoint = \"selective\": a model of kind = \"" +
                   std::string(recipe.model.name()) + "\" has no attention to run again",
               "write activation_checkpoint = \"full\" or \"none\"");
}

// How many ranks to start instead, and which axes to write instead.
std::string nearest_to(const ParallelOptions& asked, std::int64_t ranks) {
  const std::int64_t others = other_axes(asked);
  const std::int64_t below = ranks / others * others;
  std::string hint = "start ";
  if (!asked.data && below > 0) hint += std::to_string(below) + " or ";
  hint += plural(asked.data ? *asked.data * others : below + others, "rank");
  if (const auto axes = largest_axes(asked, {asked.tensor, asked.pipeline}, ranks)) {
    hint += ", or write " + join(settings_of(asked, *axes), " and ");
  }
  return hint;
}

}  // namespace

int smallest_world(const Recipe& recipe) {
  const std::int64_t product = recipe.parallel.data.value_or(1) * other_axes(recipe.parallel);
  if (product > std::numeric_limits<int>::max()) {
    throw UsageError("[parallel] the axes make " + std::to_string(product) + " ranks; at most " +
                     std::to_string(std::numeric_limits<int>::max()));
  }
  return static_cast<int>(product);
}

int resolve_data_axis(const Recipe& recipe, int world_size, const Origins& origins) {
  if (world_size < 1) throw UsageError("a run needs at least 1 rank");
  const ParallelOptions& parallel = recipe.parallel;
  const std::int64_t others = other_axes(parallel);
  const std::int64_t data = world_size / others;
  const bool divides = data >= 1 && data * others == world_size;
  if (!divides) {
    origins.fail({"parallel.tensor", "parallel.pipeline", "parallel.context"},
                 "tensor x pipeline x context is " + std::to_string(others) +
                     ", which does not divide " + plural(world_size, "rank"),
                 nearest_to(parallel, world_size));
  }
  const std::int64_t fewest = recipe.elastic.min_data;
  if (data < fewest) {
    origins.fail({"elastic.min_data"},
                 "min_data = " + std::to_string(fewest) + ": " + plural(world_size, "rank") +
                     " make a data axis of " + std::to_string(data),
                 "start with --ranks " + std::to_string(fewest * others) + " or more");
  }
  const bool may_be_fewer = fewest > 0 && parallel.data && data < *parallel.data;
  if (parallel.data && *parallel.data != data && !may_be_fewer) {
    origins.fail({"parallel.data"},
                 "data = " + std::to_string(*parallel.data) +
                     ": data x tensor x pipeline x context is " +
                     std::to_string(*parallel.data * others) + ", and this run has " +
                     plural(world_size, "rank"),
                 "write data = " + std::to_string(data) + " or \"auto\", or start with --ranks " +
                     std::to_string(*parallel.data * others));
  }
  return static_cast<int>(data);
}

void check_batch(const Recipe& recipe, int data_ranks, const Origins& origins) {
  const std::int64_t batch = recipe.train.global_batch_size;
  if (batch >= data_ranks) return;
  origins.fail({"train.global_batch_size"},
               "global_batch_size = " + std::to_string(batch) +
                   " is smaller than the data axis of " + plural(data_ranks, "rank") +
                   "; the nearest that works is " + std::to_string(data_ranks),
               "write global_batch_size = " + std::to_string(data_ranks) + ", or start at most " +
                   plural(batch, "data-parallel rank"));
}

bool splits_backward(const ParallelOptions& parallel) {
  if (parallel.pipeline == 1) return false;
  return splits_backward(parallel.pipeline_schedule);
}

bool cuts_each_microbatch(const ParallelOptions& parallel) {
  return parallel.zero_stage >= 2 && parallel.cut_gradients == CutGradients::kEachMicrobatch;
}

bool exchanges_each_microbatch(const ParallelOptions& parallel) {
  return parallel.zero_stage == 3 || cuts_each_microbatch(parallel);
}

std::int64_t virtual_stages_per_rank(const ParallelOptions& parallel) {
  if (parallel.pipeline == 1) return 1;
  return std::max<std::int64_t>(parallel.virtual_stages,
                                min_virtual_stages(parallel.pipeline_schedule));
}

void check_split(const Recipe& recipe, const Origins& origins, KnownRanks ranks) {
  check_tensor(recipe, origins, ranks);
  if (recipe.parallel.pipeline > 1) {
    check_virtual_stages(recipe, origins, ranks);
    check_stages(recipe, origins, ranks);
  }
  check_cut(recipe, origins);
  check_checkpoint(recipe, origins);
  check_cut_gradients(recipe.parallel, origins);
  const ParallelOptions& parallel = recipe.parallel;
  if (!parallel.data) return;
  // One that does not fit the ranks is refused by resolve_data_axis(), and then another one.
  if (ranks && !fills(parallel, {parallel.tensor, parallel.pipeline}, *ranks)) return;
  check_shards(parallel, origins);
  check_batch(recipe, static_cast<int>(*parallel.data), origins);
}

void close_sizes(Recipe& recipe, const Origins& origins) {
  ModelOptions& model = recipe.model;
  if (!model.kind().has_open_sizes(model.options(), origins)) return;
  apply_store_options(recipe);  // the data are read here first
  const std::optional<SampleSpec> sample =
      recipe.data.kind().describe(recipe.data.options(), traits_of(model).sample, origins);
  model.kind().close_sizes(model.options(), sample ? &*sample : nullptr, origins);
}

void check_paths(const Recipe& recipe, const Origins& origins) {
  recipe.data.kind().check_ready(recipe.data.options(), origins);
  recipe.model.kind().check_ready(recipe.model.options(), recipe.model.loss, origins);
}

int resolve_islands(const Recipe& recipe, int world_size, int host_ranks, const Origins& origins) {
  const std::int64_t island =
      recipe.sync.kind().island(recipe.sync.options(), host_ranks > 0 ? host_ranks : world_size);
  if (island == 0 || world_size == 1) return 1;
  const std::string kind = "kind = \"" + std::string(recipe.sync.name()) + "\": ";
  const bool needs_another = !recipe.sync.kind().servers(recipe.sync.options());
  if (island == world_size && !needs_another) return 1;
  if (island > world_size && !needs_another) {
    origins.fail({"sync.island", "sync.kind"},
                 kind + plural(world_size, "rank") + " are no worker of " + std::to_string(island),
                 "start with --ranks " + std::to_string(island));
  }
  if (island >= world_size) {
    origins.fail({"sync.island", "sync.kind"},
                 kind + plural(world_size, "rank") + " are one island of " +
                     std::to_string(island) + ", which has none to exchange with",
                 "write island = 1 where each rank is to be one, or start more hosts");
  }
  if (world_size % island != 0) {
    origins.fail(
        {"sync.island"},
        "island = " + std::to_string(island) + " does not divide " + plural(world_size, "rank"),
        "start with --ranks " + std::to_string(world_size / island * island));
  }
  return static_cast<int>(world_size / island);
}

Recipe resolve_recipe(const Recipe& recipe, int world_size, const Origins& origins,
                      int host_ranks) {
  check_paths(recipe, origins);
  const int islands = resolve_islands(recipe, world_size, host_ranks, origins);
  if (islands > 1 && recipe.train.precision == Precision::kFloat16) {
    origins.fail(
        {"train.precision", "sync.kind"},
        "precision = \"fp16\": its loss scale is one for all ranks, and islands skip steps "
        "on their own",
        "write precision = \"bf16\"");
  }
  const int island = world_size / islands;
  check_split(recipe, origins, island);
  const int data_ranks = resolve_data_axis(recipe, island, origins);
  check_batch(recipe, data_ranks * islands, origins);
  Recipe resolved = recipe;
  resolved.parallel.islands = islands;
  resolved.parallel.data = data_ranks;
  check_shards(resolved.parallel, origins);
  check_local_steps(resolved, origins);
  return resolved;
}

}  // namespace troika
