#include <ATen/Parallel.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/version.h>
#include <troika/cli/command.h>
#include <troika/cli/ranks.h>
#include <troika/cli/recipe_flags.h>
#include <troika/device/plugin.h>
#include <troika/observe/log.h>
#include <troika/observe/machine.h>
#include <troika/plan/memory_advice.h>
#include <troika/plan/memory_plan.h>
#include <troika/plan/memory_report.h>
#include <troika/plan/useful_threads.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/resolve.h>
#include <troika/rendezvous/world.h>
#include <troika/train/run.h>
#include <troika/train/run_folder.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troika {
namespace {

struct TrainArguments {
  std::string file;
  std::vector<std::string> overrides;
  LaunchFlags launch;
  bool overwrite = false;
  bool resume = false;
  bool json = false;
  bool dry_run = false;

  [[nodiscard]] Existing existing() const {
    if (overwrite) return Existing::kOverwrite;
    return resume ? Existing::kResume : Existing::kRefuseOthers;
  }
};

// As far as they are known before the recipe, whose axes are the default.
KnownRanks ranks_asked(const LaunchFlags& flags) {
  if (flags.ranks) return *flags.ranks;
  if (!flags.ranks_per_node) return std::nullopt;
  return std::int64_t{*flags.ranks_per_node} * flags.nodes.value_or(1);
}

// The same where another launcher may have started this process.
KnownRanks ranks_asked(const LaunchFlags& flags, const Environment& environment) {
  if (flags.any()) return ranks_asked(flags);
  const auto world = world_from_environment(environment);
  return world ? KnownRanks(world->size) : std::nullopt;
}

RankDefaults defaults_of(const Recipe& recipe) {
  RankDefaults defaults;
  defaults.axes = smallest_world(recipe);
  defaults.all_axes = recipe.parallel.data.has_value();
  defaults.usable_cores = usable_cores();
  // Also so that LibTorch finds the devices when it is first used.
  if (recipe.train.device != "cpu") defaults.gpus = load_device_plugin().devices;
  return defaults;
}

// Ranks of this host, as far as this process knows.
HostRanks ranks_here(const World& world) {
  if (!world.located() || world.node_rank < 0) return {world.rank, 1};
  return {world.node_rank * world.local_size, world.local_size};
}

constexpr const char* kThreads = "OMP_NUM_THREADS";

int train_as_rank(const TrainArguments& options, const Recipe& recipe, const World& world) {
  if (!Environment::of_process().has(kThreads)) {
    at::set_num_threads(useful_threads(recipe, at::get_num_threads()));
  }
  RunOptions run;
  run.existing = options.existing();
  run.stop_on_signals = true;
  run.progress = progress_options(STDERR_FILENO);
  if (options.json) run.progress.style = ProgressStyle::kSilent;
  const RunReport report = run_training(recipe, world, run);
  if (options.json && world.rank == 0) std::cout << report.json << std::endl;
  return 0;
}

int launch(const LoadedRecipe& loaded, const Recipe& recipe, const LaunchPlan& plan) {
  {
    const ScopedRankThreads threads(plan.ranks_per_node);
    check_memory_fits(loaded.recipe, plan.ranks,
                      {plan.node_rank * plan.ranks_per_node, plan.ranks_per_node},
                      machine_facts().usable_memory_bytes);
  }
  LaunchOptions launch;
  launch.plan = plan;
  if (!Environment::of_process().has(kThreads)) {
    const int available = threads_of_rank(usable_cores(), plan.ranks_per_node);
    launch.environment[kThreads] = std::to_string(useful_threads(recipe, available));
  }
  launch.command = current_command_line();
  launch.version = kVersion;
  launch.rendezvous_timeout = Seconds(recipe.comm.rendezvous_timeout_seconds);
  launch.recorders = flight_folder(run_folder(recipe));
  // For the step under way, and to save its model.
  launch.interrupt_grace = Seconds(recipe.checkpoint.timeout_seconds);
  return launch_and_report(launch);
}

int train_or_launch(const TrainArguments& options, const Environment& environment,
                    const Reporter& reporter) {
  const LoadedRecipe loaded =
      load_recipe(options.file, options.overrides, ranks_asked(options.launch, environment));
  const auto role = join_or_launch(options.launch, defaults_of(loaded.recipe), environment);
  const auto* world = std::get_if<World>(&role);
  LogOptions log;
  if (world != nullptr && world->size > 1 && !reporter.connected()) log.rank = world->rank;
  configure_log(log);
  const int ranks = world != nullptr ? world->size : std::get<LaunchPlan>(role).ranks;
  const Recipe recipe = resolve_for_run(loaded.recipe, ranks, loaded.origins);
  if (world == nullptr || (world->rank == 0 && !reporter.connected())) {
    for (const std::string& warning : warnings_of_run(loaded, recipe)) log_warning(warning);
  }
  if (world == nullptr) return launch(loaded, recipe, std::get<LaunchPlan>(role));
  if (!reporter.connected()) {  // else our launcher has looked
    check_memory_fits(loaded.recipe, world->size, ranks_here(*world),
                      machine_facts().usable_memory_bytes);
  }
  return train_as_rank(options, loaded.recipe, *world);
}

// Starts nothing, writes nothing.
int predict(const TrainArguments& options) {
  const LoadedRecipe loaded = load_recipe(options.file, options.overrides,
                                          ranks_asked(options.launch), EngineUse::kNotUsed);
  const LaunchPlan plan = plan_without_launch(options.launch, defaults_of(loaded.recipe));
  const Recipe recipe = resolve_for_run(loaded.recipe, plan.ranks, loaded.origins);
  print_warnings(warnings_of_run(loaded, recipe));
  const ScopedRankThreads threads(plan.ranks_per_node);
  const DryRun run = dry_run(recipe, plan.ranks_per_node, machine_facts().usable_memory_bytes);
  if (!options.json) std::cout << to_text(run) << std::flush;  // advice may take a while
  const std::string advice =
      run.fits() ? ""
                 : memory_advice(loaded.recipe, plan.ranks, plan.ranks_per_node, run.host_bytes);
  if (options.json) {
    std::cout << to_json(run, advice) << "\n";
  } else if (!advice.empty()) {
    std::cout << advice << "\n";
  }
  return 0;
}

int train(const TrainArguments& options) {
  if (options.dry_run) return predict(options);
  const Environment environment = Environment::of_process();
  Reporter reporter(environment);
  if (!reporter.connected()) return train_or_launch(options, environment, reporter);
  return run_for_launcher(environment, reporter, [&] {
    check(train_or_launch(options, environment, reporter) == 0, "a rank is to throw its errors");
    return std::string("{}");
  });
}

constexpr const char* kTrainExamples =
    "Examples:\n"
    "  troika train recipes/quickstart.toml --ranks 2\n"
    "  troika train run.toml --set train.steps=1000 --set name=longer\n"
    "  troika train run.toml --nodes 2 --node-rank 0 --ranks-per-node 8 --rendezvous host0:29500\n"
    "  troika train run.toml --ranks 64 --ranks-per-node 8 --dry-run\n"
    "  mpirun -n 4 troika train run.toml        (joins as the ranks that mpirun has started)\n"
    "  srun -n 16 troika train run.toml         (the same in a Slurm job)\n"
    "  torchrun --nproc-per-node 2 --no-python troika train run.toml";

}  // namespace

void add_train_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("train", "Train what a recipe describes");
  auto options = std::make_shared<TrainArguments>();
  add_recipe_flags(*command, options->file, options->overrides);
  command->add_flag("--overwrite", options->overwrite, "Replace a run of this name");
  command
      ->add_flag("--resume", options->resume,
                 "Go on with a run of this name (there are no checkpoints yet)")
      ->excludes("--overwrite");
  command->add_flag("--json", options->json, "No progress; one line of JSON on stdout at the end");
  command->add_flag("--dry-run", options->dry_run,
                    "Say how much memory each rank is going to need; start nothing");
  add_launch_flags(*command, options->launch);
  command->footer(kTrainExamples);
  command->callback([options, &action] { action = [options] { return train(*options); }; });
}

}  // namespace troika
