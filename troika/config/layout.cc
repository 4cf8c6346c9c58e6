#include <troika/base/error.h>
#include <troika/config/choices.h>
#include <troika/config/layout.h>

#include <limits>
#include <string>

namespace troika {
namespace {

// Each axis is at most 10,000, so the product has at most 53 bits.
std::int64_t other_axes(const ParallelRecipe& parallel) {
  return parallel.tensor * parallel.pipeline * parallel.context;
}

std::string plural(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

std::optional<int> world_size_of(const Recipe& recipe) {
  if (!recipe.parallel.data) return std::nullopt;
  const std::int64_t product = *recipe.parallel.data * other_axes(recipe.parallel);
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
                 "start a multiple of " + plural(others, "rank") + ", or make an axis smaller");
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
  return resolved;
}

}  // namespace troika
