// The command `troika train`: a launcher, a rank of a launcher, or a worker that joins a job.
#include <ATen/Parallel.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/base/version.h>
#include <troika/cli/command.h>
#include <troika/cli/ranks.h>
#include <troika/cli/recipe_flags.h>
#include <troika/cli/train_restarts.h>
#include <troika/device/choose.h>
#include <troika/device/out_of_memory.h>
#include <troika/device/plugin.h>
#include <troika/observe/log.h>
#include <troika/observe/machine.h>
#include <troika/plan/host_memory.h>
#include <troika/plan/memory_advice.h>
#include <troika/plan/memory_plan.h>
#include <troika/plan/memory_report.h>
#include <troika/plan/useful_threads.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/resolve.h>
#include <troika/recipe/timeouts.h>
#include <troika/rendezvous/world.h>
#include <troika/session/host_position.h>
#include <troika/train/precision.h>
#include <troika/train/run.h>
#include <troika/train/run_folder.h>
#include <troika/train/server_job.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
  std::string device_memory;  // "80G"
  std::string join;           // "HOST:PORT"

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
  if (recipe.train.device != "cpu") static_cast<void>(load_device_plugin());
  defaults.devices = ranks_with_a_device(recipe.train.device);
  return defaults;
}

// Warnings of the recipe, and where `place` has no GPU though the host has some.
std::vector<std::string> warnings_at(const LoadedRecipe& loaded, const Recipe& resolved,
                                     HostPosition place) {
  std::vector<std::string> warnings = warnings_of_run(loaded, resolved);
  const std::string reason = reason_for_cpu(loaded.recipe.train.device, place);
  if (!reason.empty()) warnings.push_back(reason);
  return warnings;
}

// Ranks of this host, as far as this process knows.
HostRanks ranks_here(const World& world) {
  if (!world.located() || world.node_rank < 0) return {world.rank, 1};
  return {world.node_rank * world.local_size, world.local_size};
}

constexpr const char* kThreads = "OMP_NUM_THREADS";
constexpr const char* kWorkerPlace = "TROIKA_WORKER_PLACE";  // of an island's ranks

void prepare_rank(const Recipe& recipe) {
  if (!Environment::of_process().has(kThreads)) {
    at::set_num_threads(useful_threads(recipe, at::get_num_threads()));
  }
  if (recipe.train.device != "cpu") prepare_environment(numeric_settings(recipe.train));
}

void launch_island(const TrainArguments& options, const Recipe& recipe,
                   const std::string& coordinator, std::optional<int> place, HostPosition host);

int train_as_rank(const TrainArguments& options, const Recipe& recipe, const World& world) {
  prepare_rank(recipe);
  RunOptions run;
  run.train_island = [&](const std::string& coordinator, int place, HostPosition host) {
    launch_island(options, recipe, coordinator, place, host);
  };
  run.existing = options.existing();
  run.stop_on_signals = true;
  run.progress = progress_options(STDERR_FILENO);
  if (options.json) run.progress.style = ProgressStyle::kSilent;
  const RunReport report =
      has_servers(recipe) ? run_with_servers(recipe, world, run) : run_training(recipe, world, run);
  if (options.json && world.rank == 0) std::cout << report.json << std::endl;
  return 0;
}

// Names the place in the recipe, before any rank is started.
void check_device(const Recipe& recipe, HostPosition place, const Origins& origins) {
  try {
    static_cast<void>(choose_device(recipe.train.device, place, "device"));
  } catch (const UsageError& error) {
    origins.fail({"train.device"}, error.what(), error.hint());
  }
}

// The memories of this host and its devices, whole.
void check_host(const Recipe& loaded, int ranks, HostRanks here, const World& local) {
  HostPosition place = host_position(local, Environment::of_process());
  place.size = here.count;
  check_memory_fits(loaded, ranks, here, memory_of_this_host(loaded.train.device, place));
}

// What is free of this rank's device: to look opens it, which the launcher leaves to its ranks.
void check_own_device(const Recipe& loaded, int ranks, const World& world, HostPosition place) {
  if (!world.located()) return;
  const auto device_of = [&](int rank) {
    return choose_device(loaded.train.device, {rank, place.size, place.devices_are_own}, "device");
  };
  const at::Device device = device_of(place.rank);
  if (device.is_cpu()) return;
  const bool is_shared = place.size > 1 && !place.devices_are_own &&
                         device_of((place.rank + 1) % place.size) == device;
  const HostRanks here = is_shared ? ranks_here(world) : HostRanks{world.rank, 1};
  check_memory_fits(loaded, ranks, here, free_memory_of(device, here.count));
}

// What speaks against going on with fewer ranks; empty where nothing does.
std::string why_not_on(const LoadedRecipe& loaded, const LaunchPlan& fewer) {
  try {
    const Recipe recipe = resolve_for_run(loaded.recipe, fewer.ranks, loaded.origins,
                                          HostPosition{0, fewer.ranks_per_node});
    const ScopedRankThreads threads(fewer.ranks_per_node);
    check_host(loaded.recipe, fewer.ranks, {0, fewer.ranks_per_node}, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Where parameters lie on servers: these come back, workers as often as the recipe says, and the
// coordinator is the job.
OnDeath on_death(const Recipe& recipe, int rank, int deaths_before) {
  constexpr int kServerStarts = 10;
  if (rank == 0) return OnDeath::kJobEnds;
  if (rank < processes_beside_workers(recipe)) {
    return deaths_before < kServerStarts ? OnDeath::kRankStartsAgain : OnDeath::kJobEnds;
  }
  return deaths_before < recipe.elastic.max_restarts ? OnDeath::kRankStartsAgain
                                                     : OnDeath::kJobGoesOn;
}

void set_threads(LaunchOptions& launch, const Recipe& recipe, int ranks_per_node) {
  if (Environment::of_process().has(kThreads)) return;
  const int available = threads_of_rank(usable_cores(), ranks_per_node);
  launch.environment[kThreads] = std::to_string(useful_threads(recipe, available));
}

// Starts the ranks of one worker, which join a job, and waits until they have ended. Throws what
// has ended them.
void launch_island(const TrainArguments& options, const Recipe& recipe,
                   const std::string& coordinator, std::optional<int> place, HostPosition host) {
  const int ranks = ranks_of_worker(recipe);
  const int first = host.rank * ranks, on_host = host.size * ranks;
  LaunchOptions launch;
  launch.plan.ranks = launch.plan.ranks_per_node = ranks;
  set_threads(launch, recipe, on_host);
  launch.cores = cores_near_devices(recipe.train.device, on_host);
  if (std::ssize(launch.cores) == on_host) {
    launch.cores = {launch.cores.begin() + first, launch.cores.begin() + first + ranks};
  }
  launch.environment[kFirstOnHost] = std::to_string(first);
  launch.environment[kRanksOnHost] = std::to_string(on_host);
  launch.command = {current_command_line().front(), "train", options.file, "--join", coordinator};
  for (const std::string& each : options.overrides) {
    launch.command.insert(launch.command.end(), {"--set", each});
  }
  if (place) launch.environment[kWorkerPlace] = std::to_string(*place);
  launch.takes_signals = !place;
  launch.version = kVersion;
  launch.rendezvous_timeout = start_timeout(recipe);
  launch.recorders =
      flight_folder(run_folder(recipe)) /
      (place ? "worker-" + std::to_string(*place) : "joined-" + std::to_string(getpid()));
  launch.interrupt_grace = Seconds(recipe.checkpoint.timeout_seconds);
  const LaunchResult result = run_with_recorders(std::move(launch));
  if (!result.failure) return;
  // What may not come again is as if this process had died: it is started again, or left out.
  if (result.can_restart) throw PeerError(result.failure->message, result.failure->hint);
  throw_failure(*result.failure);
}

// `ranks` train; the plan may have more processes.
int launch(const LoadedRecipe& loaded, const Recipe& recipe, int ranks, const LaunchPlan& plan,
           Existing existing) {
  // Processes beside those that train are on any host: it may have as many of these as it has
  // processes.
  const int of_process = has_servers(recipe) ? ranks_of_worker(recipe) : 1;
  const int here = std::min(plan.ranks_per_node * of_process, ranks);
  {
    const ScopedRankThreads threads(here);
    const int first = std::min(plan.node_rank * plan.ranks_per_node * of_process, ranks - here);
    check_host(loaded.recipe, ranks, {first, here}, {});
  }
  LaunchOptions launch;
  launch.plan = plan;
  set_threads(launch, recipe, std::max(plan.ranks_per_node, here));
  // Where some of them do not train, they are not bound.
  if (!has_servers(recipe)) {
    launch.cores = cores_near_devices(recipe.train.device, plan.ranks_per_node);
  }
  launch.command = current_command_line();
  launch.version = kVersion;
  launch.rendezvous_timeout = start_timeout(recipe);
  launch.recorders = flight_folder(run_folder(recipe));
  if (recipe.elastic.min_data > 0) {
    launch.why_not_on = [&loaded](const LaunchPlan& fewer) { return why_not_on(loaded, fewer); };
  }
  if (has_servers(recipe)) {
    launch.on_death = [&recipe](int rank, int deaths_before) {
      return on_death(recipe, rank, deaths_before);
    };
  }
  // For the step under way, and to save its model.
  launch.interrupt_grace = Seconds(recipe.checkpoint.timeout_seconds);
  LaunchResult result = train_with_restarts(std::move(launch), recipe, existing);
  if (result.failure && is_out_of_memory(result.failure->message)) {
    const std::string advice = advice_after_full_device(
        loaded.recipe, plan.ranks, plan.ranks_per_node,
        memory_of_this_host(recipe.train.device, {0, plan.ranks_per_node}));
    if (!advice.empty()) result.failure->hint = advice;
  }
  return report_result(result);
}

// The place of this process among those of its host that train, if it does, or that of the first
// of those that are to be started.
std::optional<HostPosition> place_here(const Recipe& recipe,
                                       const std::variant<World, LaunchPlan>& role, int ranks) {
  if (const auto* world = std::get_if<World>(&role)) {
    if (has_servers(recipe)) return position_of_worker(recipe, *world);
    return host_position(*world, Environment::of_process());
  }
  const int processes = std::get<LaunchPlan>(role).ranks_per_node;
  if (!has_servers(recipe)) return HostPosition{0, processes};
  return HostPosition{0, std::min(processes * ranks_of_worker(recipe), ranks)};
}

// What a process knows before it starts ranks, or joins others.
struct Start {
  LoadedRecipe loaded;
  std::variant<World, LaunchPlan> role;
  int ranks = 1;  // that train
  std::optional<HostPosition> own;
  Recipe recipe;  // resolved
  // Flags of one host count workers where parameters lie on servers, and all else counts processes.
  bool counts_workers = false;

  [[nodiscard]] const World* world() const { return std::get_if<World>(&role); }
  [[nodiscard]] HostPosition place() const { return own.value_or(HostPosition()); }
};

Start start_of(const TrainArguments& options, const Environment& environment,
               const Reporter& reporter) {
  Start start;
  start.loaded =
      load_recipe(options.file, options.overrides, ranks_asked(options.launch, environment));
  const LoadedRecipe& loaded = start.loaded;
  apply_store_options(loaded.recipe);
  start.role = join_or_launch(options.launch, defaults_of(loaded.recipe), environment);
  const World* world = start.world();
  LogOptions log;
  if (world != nullptr && world->size > 1 && !reporter.connected()) log.rank = world->rank;
  configure_log(log);
  start.counts_workers =
      has_servers(loaded.recipe) && world == nullptr && std::get<LaunchPlan>(start.role).nodes == 1;
  const int processes = world != nullptr ? world->size : std::get<LaunchPlan>(start.role).ranks;
  start.ranks = start.counts_workers || !has_servers(loaded.recipe)
                    ? processes
                    : workers_of(loaded.recipe, processes) * ranks_of_worker(loaded.recipe);
  start.own = place_here(loaded.recipe, start.role, start.ranks);
  start.recipe = resolve_for_run(loaded.recipe, start.ranks, loaded.origins, start.place());
  if (world == nullptr || (world->rank == 0 && !reporter.connected())) {
    for (const std::string& warning : warnings_at(loaded, start.recipe, start.place())) {
      log_warning(warning);
    }
  }
  if (start.own) check_device(start.recipe, start.place(), loaded.origins);
  return start;
}

int launch_ranks(const TrainArguments& options, const Start& start) {
  LaunchPlan plan = std::get<LaunchPlan>(start.role);
  if (start.counts_workers) {
    plan.ranks =
        start.ranks / ranks_of_worker(start.recipe) + processes_beside_workers(start.recipe);
    plan.ranks_per_node = plan.ranks;
  }
  return launch(start.loaded, start.recipe, start.ranks, plan, options.existing());
}

int train_or_launch(const TrainArguments& options, const Environment& environment,
                    const Reporter& reporter) {
  const Start start = [&] {
    try {
      return start_of(options, environment, reporter);
    } catch (const Error& error) {
      // A file that this host lacks, say. Our launcher tells the others.
      if (!reporter.connected()) report_to_other_hosts(options.launch, environment, error);
      throw;
    }
  }();
  const World* world = start.world();
  if (world == nullptr) return launch_ranks(options, start);
  if (!reporter.connected()) {  // else our launcher has looked
    HostRanks here = ranks_here(*world);
    here.first = std::min(here.first, start.ranks);
    here.count = std::min(here.count, start.ranks - here.first);
    check_host(start.loaded.recipe, start.ranks, here, *world);
  }
  const bool takes_device =
      !has_servers(start.recipe) || (start.own && ranks_of_worker(start.recipe) == 1);
  if (takes_device) check_own_device(start.loaded.recipe, start.ranks, *world, start.place());
  return train_as_rank(options, start.loaded.recipe, *world);
}

std::optional<std::uint64_t> bytes_of_device(const TrainArguments& options) {
  if (options.device_memory.empty()) return std::nullopt;
  const auto bytes = parse_bytes(options.device_memory);
  if (bytes) return static_cast<std::uint64_t>(*bytes);
  throw UsageError("--device-memory: " + quote(options.device_memory) + " is no size",
                   "a size is a number of bytes, or of K, M or G: --device-memory 80G");
}

// Starts nothing, writes nothing.
int predict(const TrainArguments& options) {
  const LoadedRecipe loaded = load_recipe(options.file, options.overrides,
                                          ranks_asked(options.launch), EngineUse::kNotUsed);
  const LaunchPlan plan = plan_without_launch(options.launch, defaults_of(loaded.recipe));
  const HostMemory memory = memory_of_planned_host(loaded.recipe.train.device, plan.ranks_per_node,
                                                   bytes_of_device(options));
  const Recipe recipe =
      resolve_for_run(loaded.recipe, plan.ranks, memory.auto_precision, loaded.origins);
  print_warnings(memory.devices.empty() ? warnings_at(loaded, recipe, {0, plan.ranks_per_node})
                                        : warnings_of_run(loaded, recipe));
  const ScopedRankThreads threads(plan.ranks_per_node);
  const DryRun run = dry_run(recipe, plan.ranks_per_node, memory);
  if (!options.json) std::cout << to_text(run) << std::flush;  // advice may take a while
  const std::string advice =
      run.fits() ? "" : memory_advice(loaded.recipe, plan.ranks, plan.ranks_per_node, run.memory);
  if (options.json) {
    std::cout << to_json(run, advice) << "\n";
  } else if (!advice.empty()) {
    std::cout << advice << "\n";
  }
  return 0;
}

// One more worker of a job that runs, or one of its ranks.
int join(const TrainArguments& options, const Environment& environment) {
  const LoadedRecipe loaded = load_recipe(options.file, options.overrides, std::nullopt);
  const Recipe& recipe = loaded.recipe;
  apply_store_options(recipe);
  if (!has_servers(recipe)) {
    throw UsageError("--join is for recipes with [sync] kind = \"server\"",
                     "give it the recipe that the job was started with");
  }
  const int ranks = ranks_of_worker(recipe);
  // A worker of one rank is alone, whatever has started it.
  World world = single_process_world(environment);
  if (ranks > 1) world = world_from_environment(environment).value_or(world);
  LogOptions log;
  if (world.size > 1) log.rank = world.rank;
  configure_log(log);
  if (ranks > 1 && world.size == 1) {
    launch_island(options, recipe, options.join, std::nullopt, HostPosition());
    return 0;
  }
  if (world.size != ranks) {
    throw UsageError("a worker of this job has " + plural(ranks, "rank") + ", and " +
                         std::to_string(world.size) + " are started",
                     "start " + std::to_string(ranks) + ", or leave the launcher out");
  }
  prepare_rank(recipe);
  join_servers(recipe, world, options.join, environment.number(kWorkerPlace));
  return 0;
}

int train(const TrainArguments& options) {
  if (options.dry_run) return predict(options);
  const Environment environment = Environment::of_process();
  Reporter reporter(environment);
  const auto run = [&] {
    return options.join.empty() ? train_or_launch(options, environment, reporter)
                                : join(options, environment);
  };
  if (!reporter.connected()) return run();
  return run_for_launcher(environment, reporter, [&] {
    check(run() == 0, "a rank is to throw its errors");
    return std::string("{}");
  });
}

constexpr const char* kTrainExamples =
    "Examples:\n"
    "  troika train recipes/quickstart.toml --ranks 2\n"
    "  troika train run.toml --set train.steps=1000 --set name=longer\n"
    "  troika train run.toml --nodes 2 --node-rank 0 --ranks-per-node 8 --rendezvous host0:29500\n"
    "  troika train run.toml --ranks 64 --ranks-per-node 8 --dry-run\n"
    "  troika train run.toml --set train.device=cuda --ranks 8 --dry-run --device-memory 80G\n"
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
                 "Go on with the run of this name; an error where it has no checkpoint")
      ->excludes("--overwrite");
  command->add_flag("--json", options->json, "No progress; one line of JSON on stdout at the end");
  command->add_flag("--dry-run", options->dry_run,
                    "Say how much memory each rank is going to need; start nothing");
  command
      ->add_option(
          "--device-memory", options->device_memory,
          "With --dry-run: what a GPU has, such as 80G, where this machine has no such one")
      ->type_name("SIZE")
      ->needs("--dry-run");
  command
      ->add_option("--join", options->join,
                   "Be one more worker of a job with [sync] kind = \"server\", whose coordinator "
                   "listens there")
      ->type_name("HOST:PORT")
      ->excludes("--overwrite")
      ->excludes("--resume")
      ->excludes("--json");
  add_launch_flags(*command, options->launch);
  command->footer(kTrainExamples);
  command->callback([options, &action] { action = [options] { return train(*options); }; });
}

}  // namespace troika
