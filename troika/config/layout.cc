#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/config/choices.h>
#include <troika/config/layout.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace troika {
namespace {

// Each axis is at most 10,000, so the product has at most 53 bits.
std::int64_t other_axes(const ParallelRecipe& parallel) {
  return parallel.tensor * parallel.pipeline * parallel.context;
}

void check_tensor(const Recipe& recipe, const Origins& origins) {
  const std::int64_t tensor = recipe.parallel.tensor;
  if (tensor == 1) return;
  const std::string asked = "tensor = " + std::to_string(tensor) + ": ";
  if (recipe.model.kind != ModelKind::kGpt) {
    origins.fail({"parallel.tensor"}, asked + "only [model] kind = \"gpt\" splits its layers",
                 "write tensor = 1");
  }
  if (tensor > recipe.model.heads) {
    origins.fail(
        {"parallel.tensor"},
        asked + "the model has " + plural(recipe.model.heads, "head") + ", and each rank needs one",
        "write tensor = " + std::to_string(recipe.model.heads) + " or less");
  }
}

void check_chunks(const ParallelRecipe& parallel, const Origins& origins) {
  const std::string schedule = std::string(name_of(parallel.pipeline_schedule));
  const std::string asked = "virtual_stages = " + std::to_string(parallel.virtual_stages) + ": ";
  const auto fail = [&](const std::string& what, const std::string& instead) {
    origins.fail({"parallel.virtual_stages", "parallel.pipeline_schedule"},
                 asked + "pipeline_schedule = \"" + schedule + "\" has " + what, instead);
  };
  switch (parallel.pipeline_schedule) {
    case PipelineScheduleKind::k1F1B:
      if (parallel.virtual_stages > 1) {
        fail("one chunk a rank",
             "write pipeline_schedule = \"interleaved-1f1b\", or virtual_stages = 1");
      }
      return;
    case PipelineScheduleKind::kZbH1:
    case PipelineScheduleKind::kZbH2:
      if (parallel.virtual_stages > 1) {
        fail("one chunk a rank",
             "write pipeline_schedule = \"interleaved-1f1b\" or \"zb-v\", or virtual_stages = 1");
      }
      return;
    case PipelineScheduleKind::kZbV:
      if (parallel.virtual_stages > 2) fail("two chunks a rank", "write virtual_stages = 2");
      return;
    case PipelineScheduleKind::kGpipe:
    case PipelineScheduleKind::kInterleaved1F1B:
      return;
  }
}

// What stage_units counts: embedding and head are units too, but allow no more stages than there
// are layers.
std::int64_t units_of(const ModelRecipe& model) {
  return model.kind == ModelKind::kGpt ? model.layers + 2 : std::ssize(model.hidden_dims) + 1;
}

std::int64_t layers_of(const ModelRecipe& model) {
  return model.kind == ModelKind::kGpt ? model.layers : std::ssize(model.hidden_dims) + 1;
}

// Of no more stages than layers: with fewer chunks if that is enough, else with fewer ranks too.
std::string fewer_stages(const ParallelRecipe& parallel, std::int64_t layers) {
  const std::int64_t ranks = std::min(parallel.pipeline, layers);
  if (ranks == 1) return "pipeline = 1";
  const std::string fewer_ranks = "pipeline = " + std::to_string(ranks);
  if (chunks_per_rank(parallel) == 1) return fewer_ranks + " or less";
  std::vector<std::string> settings;
  if (ranks < parallel.pipeline) settings.push_back(fewer_ranks);
  if (parallel.pipeline_schedule != PipelineScheduleKind::kZbV) {
    settings.push_back("virtual_stages = " + std::to_string(layers / ranks));
    return join(settings, " and ");
  }
  settings.emplace_back("pipeline_schedule = \"zb-h1\"");
  if (parallel.virtual_stages > 1) settings.emplace_back("virtual_stages = 1");
  return join(settings, " and ");
}

void check_stages(const Recipe& recipe, const Origins& origins) {
  const ParallelRecipe& parallel = recipe.parallel;
  const std::int64_t chunks = chunks_per_rank(parallel), stages = parallel.pipeline * chunks;
  const std::int64_t layers = layers_of(recipe.model);
  if (stages > layers) {
    origins.fail({"parallel.pipeline", "parallel.virtual_stages"},
                 "pipeline = " + std::to_string(parallel.pipeline) + " with " +
                     plural(chunks, "chunk") + " a rank makes " + plural(stages, "stage") +
                     ", and the model has " + plural(layers, "layer"),
                 "write " + fewer_stages(parallel, layers) + ", or more layers");
  }
}

// Without a pipeline nothing is cut, and the numbers may be for any; what they add up to is the
// model's all the same.
void check_cut(const Recipe& recipe, const Origins& origins) {
  const ParallelRecipe& parallel = recipe.parallel;
  const auto& cut = parallel.stage_units;
  if (cut.empty()) return;
  const std::int64_t stages = parallel.pipeline * chunks_per_rank(parallel);
  const std::int64_t units = units_of(recipe.model);
  const bool adds_up = std::accumulate(cut.begin(), cut.end(), std::int64_t{0}) == units;
  const bool is_for_any = parallel.pipeline == 1;
  if (adds_up && (is_for_any || std::ssize(cut) == stages)) return;
  origins.fail({"parallel.stage_units"},
               "stage_units: expected " + (is_for_any ? "numbers" : plural(stages, "number")) +
                   " that add up to " + plural(units, "unit") +
                   (recipe.model.kind == ModelKind::kGpt ? " (embedding, layers, head)" : ""),
               "[] cuts by cost");
}

// On one data rank nothing is cut, whatever the groups.
void check_shards(const ParallelRecipe& parallel, const Origins& origins) {
  if (!parallel.data || *parallel.data == 1 || parallel.shard == 0) return;
  if (*parallel.data % parallel.shard == 0) return;
  std::int64_t works = std::min(parallel.shard, *parallel.data);
  while (*parallel.data % works != 0) --works;
  origins.fail({"parallel.shard"},
               "shard = " + std::to_string(parallel.shard) + " does not divide the data axis of " +
                   plural(*parallel.data, "rank"),
               "write shard = " + std::to_string(works) + ", or 0 to shard over the whole axis");
}

void check_checkpoint(const Recipe& recipe, const Origins& origins) {
  const bool selective = recipe.parallel.activation_checkpoint == ActivationCheckpoint::kSelective;
  if (!selective || recipe.model.kind == ModelKind::kGpt) return;
  origins.fail({"parallel.activation_checkpoint"},
               "activation_checkpoint = \"selective\": a model of kind = \"" +
                   std::string(name_of(recipe.model.kind)) + "\" has no attention to run again",
               "write activation_checkpoint = \"full\" or \"none\"");
}

struct Axes {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
};

// Whether the ranks can be filled with these axes, and the others as asked.
bool fills(const ParallelRecipe& asked, Axes axes, std::int64_t ranks) {
  const std::int64_t others = axes.tensor * axes.pipeline * asked.context;
  return asked.data ? *asked.data * others == ranks : ranks % others == 0;
}

// The largest axes, none larger than asked, with which the ranks can be filled. A cut by hand is
// for one number of stages.
std::optional<Axes> largest_axes(const ParallelRecipe& asked, std::int64_t ranks) {
  std::optional<Axes> best;
  const std::int64_t fewest_stages = asked.stage_units.empty() ? 1 : asked.pipeline;
  for (std::int64_t tensor = asked.tensor; tensor >= 1; --tensor) {
    if (ranks % tensor != 0) continue;
    std::int64_t pipeline = asked.pipeline;
    while (pipeline >= fewest_stages && !fills(asked, {tensor, pipeline}, ranks)) --pipeline;
    if (pipeline < fewest_stages) continue;
    if (!best || tensor * pipeline > best->tensor * best->pipeline) best = {tensor, pipeline};
  }
  return best;
}

// How many ranks to start instead, and which axes to write instead.
std::string nearest_to(const ParallelRecipe& asked, std::int64_t ranks) {
  const std::int64_t others = other_axes(asked);
  const std::int64_t below = ranks / others * others;
  std::string hint = "start ";
  if (!asked.data && below > 0) hint += std::to_string(below) + " or ";
  hint += plural(asked.data ? *asked.data * others : below + others, "rank");
  if (const auto axes = largest_axes(asked, ranks)) {
    hint += ", or write ";
    const bool less_tensor = axes->tensor < asked.tensor;
    if (less_tensor) hint += "tensor = " + std::to_string(axes->tensor);
    if (axes->pipeline < asked.pipeline) {
      hint += (less_tensor ? " and pipeline = " : "pipeline = ") + std::to_string(axes->pipeline);
    }
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
  const ParallelRecipe& parallel = recipe.parallel;
  const std::int64_t others = other_axes(parallel);
  const std::int64_t data = world_size / others;
  const bool divides = data >= 1 && data * others == world_size;
  if (!divides) {
    origins.fail({"parallel.tensor", "parallel.pipeline", "parallel.context"},
                 "tensor x pipeline x context is " + std::to_string(others) +
                     ", which does not divide " + plural(world_size, "rank"),
                 nearest_to(parallel, world_size));
  }
  if (parallel.data && *parallel.data != data) {
    origins.fail({"parallel.data"},
                 "data = " + std::to_string(*parallel.data) + " makes " +
                     plural(*parallel.data * others, "rank") + ", and this run has " +
                     std::to_string(world_size),
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

std::int64_t chunks_per_rank(const ParallelRecipe& parallel) {
  if (parallel.pipeline == 1) return 1;
  return parallel.pipeline_schedule == PipelineScheduleKind::kZbV ? 2 : parallel.virtual_stages;
}

void check_split(const Recipe& recipe, const Origins& origins) {
  check_tensor(recipe, origins);
  if (recipe.parallel.pipeline > 1) {
    check_chunks(recipe.parallel, origins);
    check_stages(recipe, origins);
  }
  check_cut(recipe, origins);
  check_shards(recipe.parallel, origins);
  check_checkpoint(recipe, origins);
}

void check_paths(const Recipe& recipe, const Origins& origins) {
  const DataRecipe& data = recipe.data;
  if (data.kind == DataKind::kRandom || !data.paths.empty()) return;
  origins.fail(
      {"data.paths"},
      "paths is empty, and kind = \"" + std::string(name_of(data.kind)) + "\" reads from them",
      "as in paths = [\"corpus/**/*.txt\"], or --set 'data.paths=[\"corpus/**/*.txt\"]'");
}

Recipe resolve_recipe(const Recipe& recipe, int world_size, const Origins& origins) {
  check_paths(recipe, origins);
  Recipe resolved = recipe;
  const int data_ranks = resolve_data_axis(recipe, world_size, origins);
  check_batch(recipe, data_ranks, origins);
  resolved.parallel.data = data_ranks;
  check_split(resolved, origins);
  return resolved;
}

}  // namespace troika
