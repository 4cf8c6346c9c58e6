// The command `troika mesh`.
#include <troika/base/error.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/cli/recipe_flags.h>
#include <troika/plan/mesh_plan.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/resolve.h>
#include <troika/train/run.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troika {
namespace {

// Every rank of an axis is named once for each of the axis: more would fill the memory.
constexpr int kMostRanks = 4096;

struct MeshArguments {
  std::string file;
  std::vector<std::string> overrides;
  int ranks = 0;
  int ranks_per_node = 0;
  bool json = false;
};

int show_mesh(const MeshArguments& options) {
  const KnownRanks asked = options.ranks > 0 ? KnownRanks(options.ranks) : std::nullopt;
  const LoadedRecipe loaded =
      load_recipe(options.file, options.overrides, asked, EngineUse::kNotUsed);
  const int ranks = asked ? options.ranks : smallest_world(loaded.recipe);
  if (ranks > kMostRanks) {
    throw UsageError("mesh: the axes make " + std::to_string(ranks) + " ranks, and " +
                         std::to_string(kMostRanks) + " are the most that it shows",
                     "shorter axes show the same: --set parallel.data=8");
  }
  const int per_node = options.ranks_per_node > 0 ? options.ranks_per_node : ranks;
  const Recipe recipe = resolve_for_run(loaded.recipe, ranks, loaded.origins, {0, per_node});
  const MeshPlan plan = plan_mesh(recipe, per_node);
  print_warnings(warnings_of_run(loaded, recipe));
  std::cout << (options.json ? to_json(plan) + "\n" : to_text(plan));
  return 0;
}

}  // namespace

void add_mesh_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "mesh", "Show who would hold what, and talk to whom, without starting anything");
  auto options = std::make_shared<MeshArguments>();
  add_recipe_flags(*command, options->file, options->overrides);
  command->add_option("--ranks", options->ranks, "Ranks in total; default: what the axes make")
      ->check(between(1, kMostRanks));
  command
      ->add_option("--ranks-per-node", options->ranks_per_node,
                   "Ranks on each host, which take its devices in turn; default: all")
      ->check(between(1, kMostRanks));
  command->add_flag("--json", options->json, "Print one line of JSON");
  command->footer(
      "Examples:\n"
      "  troika mesh recipe.toml --ranks 8 --set parallel.tensor=2 --set parallel.pipeline=2\n"
      "  troika mesh recipe.toml --ranks 16 --ranks-per-node 8 --set train.device=cuda\n"
      "  troika mesh recipe.toml --ranks 64 --json");
  command->callback([options, &action] { action = [options] { return show_mesh(*options); }; });
}

}  // namespace troika
