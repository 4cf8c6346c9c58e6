// The commands `troika bench comm` and `troika bench mlp`.
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/own_program.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/base/version.h>
#include <troika/bench/comm_bench.h>
#include <troika/bench/comm_report.h>
#include <troika/bench/mlp_bench.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/cli/ranks.h>
#include <troika/comm/engines.h>
#include <troika/device/choose.h>
#include <troika/observe/machine.h>
#include <troika/session/session.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace troika {
namespace {

constexpr Seconds kToMeet{60};

struct CommBenchArguments {
  LaunchFlags flags;
  std::vector<std::string> engines;
  std::vector<std::string> operations = {"all_reduce"};
  std::string sizes = "4,64,1K,4K,64K,1M,4M,64M";
  bool own_memory = false;
  std::string device = "cpu";
  double budget = 0.5;
  bool json = false;
  std::string plot;
};

struct MlpArguments {
  LaunchFlags flags;
  std::string engine = "auto";
  MlpBenchOptions bench;
  double budget = MlpBenchOptions().budget.count();
  bool no_sync = false;
  bool json = false;
};

RankDefaults two_ranks() {
  RankDefaults defaults;
  defaults.axes = 2;
  defaults.all_axes = true;
  return defaults;
}

// One that exchanges something.
std::string engine_called(const std::string& name) {
  std::vector<std::string_view> names;
  for (const std::string_view each : engine_names()) {
    const bool measurable = traits_of_engine(each).exchanges();
    if (each == name && measurable) return name;
    if (each == name) {
      throw UsageError("--engine: " + quote(name) + " exchanges nothing that could be timed",
                       "name another one, or leave --engine out");
    }
    if (measurable) names.push_back(each);
  }
  throw UsageError("--engine: no engine is called " + quote(name), "engines: " + join(names, ", "));
}

BenchOperation operation_called(const std::string& name) {
  std::vector<std::string_view> names;
  for (const BenchOperationFacts& each : bench_operations()) {
    if (each.name == name) return each.operation;
    names.push_back(each.name);
  }
  throw UsageError("--op: no operation is called " + quote(name),
                   "operations: all, " + join(names, ", "));
}

std::vector<BenchOperation> operations_of(const CommBenchArguments& options) {
  std::vector<BenchOperation> operations;
  for (const std::string& name : options.operations) {
    if (name != "all") {
      operations.push_back(operation_called(name));
      continue;
    }
    for (const BenchOperationFacts& each : bench_operations()) {
      operations.push_back(each.operation);
    }
  }
  return operations;
}

Session open_session(const std::string& engine, const std::string& device = "cpu") {
  SessionOptions options;
  options.device = device;
  options.name = "bench";
  options.engine = engine_called(engine);
  options.rendezvous_timeout = kToMeet;
  return Session::from_environment(options);
}

LaunchOptions launch_options(const LaunchPlan& plan, std::vector<std::string> command,
                             const std::string& device = "cpu") {
  LaunchOptions launch;
  launch.plan = plan;
  launch.cores = cores_near_devices(device, plan.ranks_per_node);
  launch.command = std::move(command);
  launch.version = kVersion;
  launch.rendezvous_timeout = kToMeet;
  return launch;
}

UsageError alone() {
  return UsageError("one rank has no peer to exchange data with", "start two or more: --ranks 2");
}

// On one rank, with one engine.
std::vector<CommTiming> measure_comm(const CommBenchArguments& options, const std::string& engine) {
  CommBenchOptions bench;
  bench.operations = operations_of(options);
  bench.sizes = parse_sizes(options.sizes);
  bench.budget = Seconds(options.budget);
  bench.memory = options.own_memory ? BenchMemory::kOwn : BenchMemory::kGroup;
  const Session session = open_session(engine, options.device);
  if (session.size() < 2) throw alone();
  bench.device = session.device();
  std::vector<CommTiming> timings = bench_comm(session.world(), bench);
  session.leave();
  return timings;
}

std::vector<std::string> comm_command(const CommBenchArguments& options,
                                      const std::string& engine) {
  std::vector<std::string> words = {own_program().string(),
                                    "bench",
                                    "comm",
                                    "--engine",
                                    engine,
                                    "--op",
                                    join(options.operations, ","),
                                    "--sizes",
                                    options.sizes,
                                    "--budget",
                                    std::to_string(options.budget),
                                    "--device",
                                    options.device};
  if (options.own_memory) words.emplace_back("--own-memory");
  return words;
}

// Whether an engine does not work here. Wrong results, interruptions and deaths concern them all.
bool is_of_the_engine(const Failure& failure) {
  return failure.code == ExitCode::kUsage || failure.code == ExitCode::kRendezvous;
}

// A job for each engine: one that cannot connect leaves the others alone.
CommReport launch_comm(const CommBenchArguments& options, const LaunchPlan& plan) {
  // Refused here once, rather than by every rank with every engine.
  const HostPosition first{0, plan.ranks_per_node};
  const bool on_host = choose_device(options.device, first, "--device").is_cpu();
  CommReport report{host_name(), plan.ranks, {}, {}};
  std::vector<std::string> engines = options.engines;
  const bool every = engines.empty();
  if (every && plan.nodes > 1) engines.emplace_back("auto");  // on one host it is one of the others
  for (const EngineFacts& facts : list_engines()) {
    if (!every || !facts.traits.exchanges()) continue;
    if (!facts.traits.carries_host_memory() && on_host) {
      report.left_out.push_back(
          {facts.name, "it carries GPU memory; this measures host memory (--device cuda)"});
    } else if (facts.usable) {
      engines.push_back(facts.name);
    } else {
      report.left_out.push_back({facts.name, facts.reason});
    }
  }
  for (const std::string& engine : engines) {
    const LaunchResult result =
        run_with_recorders(launch_options(plan, comm_command(options, engine), options.device));
    if (!result.failure) {
      const std::vector<CommTiming> timings = decode_timings(result.results.at(0));
      report.timings.insert(report.timings.end(), timings.begin(), timings.end());
    } else if (every && is_of_the_engine(*result.failure)) {
      const std::string& hint = result.failure->hint;
      report.left_out.push_back(
          {engine, result.failure->message + (hint.empty() ? "" : "; " + hint)});
    } else {
      throw Error(result.failure->code, engine + ": " + result.failure->message,
                  result.failure->hint);
    }
  }
  return report;
}

// Before all that is measured would be lost.
void check_plot(const CommBenchArguments& options) {
  if (options.plot.empty()) return;
  if (std::filesystem::is_directory(options.plot)) {
    throw UsageError("--plot: " + quote(options.plot) + " is a folder",
                     "name the file in it: --plot " + options.plot + "/comm.svg");
  }
  const AtomicFile trial(options.plot);
}

int show(const CommBenchArguments& options, const CommReport& report) {
  if (!options.plot.empty()) write_file_atomically(options.plot, to_svg(report));
  std::cout << (options.json ? to_json(report) + "\n" : to_text(report)) << std::flush;
  return 0;
}

int run_comm(const CommBenchArguments& options) {
  (void)operations_of(options);
  (void)parse_sizes(options.sizes);
  for (const std::string& engine : options.engines) (void)engine_called(engine);
  const Environment environment = Environment::of_process();
  Reporter reporter(environment);
  if (reporter.connected()) {
    return run_for_launcher(environment, reporter,
                            [&] { return encode(measure_comm(options, options.engines.at(0))); });
  }
  const auto role = join_or_launch(options.flags, two_ranks(), environment);
  if (const auto* plan = std::get_if<LaunchPlan>(&role)) {
    if (plan->ranks < 2) throw alone();
    const bool tells = plan->node_rank == 0;  // the other launchers would tell the same
    if (tells) check_plot(options);
    const CommReport report = launch_comm(options, *plan);
    return tells ? show(options, report) : 0;
  }
  if (options.engines.size() > 1) {
    throw UsageError("ranks that a launcher has started measure one engine at a time",
                     "name one with --engine, or leave it out for the fastest");
  }
  const World& world = std::get<World>(role);
  if (world.rank == 0) check_plot(options);
  const std::string engine = options.engines.empty() ? "auto" : options.engines.front();
  const CommReport report{world.host, world.size, measure_comm(options, engine), {}};
  return world.rank == 0 ? show(options, report) : 0;
}

nlohmann::json measure_mlp(const MlpArguments& options) {
  const Session session = open_session(options.engine);
  MlpBenchOptions bench = options.bench;
  bench.budget = Seconds(options.budget);
  if (options.no_sync) bench.compare = MlpBenchOptions::Compare::kUnsynchronised;
  const MlpTiming timing = bench_mlp(session, bench);
  nlohmann::json json{{"ranks", session.size()},
                      {"engine", session.world().engine_name()},
                      {"steps_per_second", timing.steps_per_second},
                      {"steps", timing.steps},
                      {"repeats", timing.repeats},
                      {"loss", timing.loss},
                      {"first_step_at", timing.first_step_at}};
  if (const auto& alone = timing.unsynchronised_steps_per_second) {
    json["unsynchronised_steps_per_second"] = *alone;
    json["of_unsynchronised"] = timing.steps_per_second / *alone;
  }
  if (const auto& barrier_rate = timing.barrier_steps_per_second) {
    json["barrier_steps_per_second"] = *barrier_rate;
    json["of_barrier"] = timing.steps_per_second / *barrier_rate;
  }
  session.leave();
  return json;
}

int show(const MlpArguments& options, const nlohmann::json& json) {
  if (options.json) {
    std::cout << json.dump() << std::endl;
    return 0;
  }
  std::cout << "MLP 64-128-128-10, 32 samples a rank, SGD, " << json.at("ranks")
            << (json.at("ranks") == 1 ? " rank" : " ranks") << ", engine "
            << json.at("engine").get<std::string>() << "\n"
            << format_fixed(json.at("steps_per_second"), 0) << " steps/s of every rank (median of "
            << json.at("repeats") << " repeats of " << json.at("steps") << " steps)\n";
  if (json.contains("of_unsynchronised")) {
    std::cout << format_fixed(json.at("unsynchronised_steps_per_second"), 0)
              << " steps/s without averaging gradients, at the same time: "
              << format_fixed(100 * json.at("of_unsynchronised").get<double>(), 1)
              << " % of them are kept\n"
              << format_fixed(json.at("barrier_steps_per_second"), 0)
              << " steps/s with a barrier after each step and nothing else: "
              << format_fixed(100 * json.at("of_barrier").get<double>(), 1)
              << " % of them are kept\n";
  }
  std::cout << std::flush;
  return 0;
}

int run_mlp(const MlpArguments& options) {
  (void)engine_called(options.engine);
  const Environment environment = Environment::of_process();
  Reporter reporter(environment);
  if (reporter.connected()) {
    return run_for_launcher(environment, reporter, [&] { return measure_mlp(options).dump(); });
  }
  const auto role = join_or_launch(options.flags, two_ranks(), environment);
  if (const auto* plan = std::get_if<LaunchPlan>(&role)) {
    const LaunchResult result = run_with_recorders(launch_options(*plan, current_command_line()));
    if (result.failure) {
      throw Error(result.failure->code, result.failure->message, result.failure->hint);
    }
    return plan->node_rank == 0 ? show(options, nlohmann::json::parse(result.results.at(0))) : 0;
  }
  const nlohmann::json json = measure_mlp(options);
  return std::get<World>(role).rank == 0 ? show(options, json) : 0;
}

void add_comm(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("comm", "Time the collectives, and check their results");
  auto options = std::make_shared<CommBenchArguments>();
  command
      ->add_option("--engine", options->engines,
                   "Engines, such as shm,gloo (default: all that can be used here)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--op", options->operations, "Operations, such as all_reduce,broadcast, or all")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("all_reduce");
  command
      ->add_option("--sizes", options->sizes,
                   "Bytes of the larger tensor of a rank: 4,4K,64M, or 4:64M by factors of 4")
      ->capture_default_str();
  command
      ->add_option("--device", options->device,
                   "Where the tensors lie: cpu, cuda (a GPU for each rank) or cuda:1")
      ->capture_default_str();
  command->add_flag("--own-memory", options->own_memory,
                    "Tensors in ordinary memory, rather than in that of Group::allocate");
  command->add_option("--budget", options->budget, "Seconds to spend on each size of an operation")
      ->check(between(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--plot", options->plot, "Write a plot of time and bandwidth, as SVG")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "One line of JSON, for machines");
  add_launch_flags(*command, options->flags);
  command->footer(
      "Examples:\n"
      "  troika bench comm --ranks 2\n"
      "  troika bench comm --ranks 4 --engine shm --op all --sizes 4:64M --plot comm.svg\n"
      "  troika bench comm --ranks 8 --device cuda --sizes 4K:1G\n"
      "  mpirun -n 2 troika bench comm --engine mpi --json");
  command->callback([options, &action] { action = [options] { return run_comm(*options); }; });
}

void add_mlp(CLI::App& bench, Action& action) {
  CLI::App* command =
      bench.add_subcommand("mlp", "Time the steps of a small model of torch::nn, data parallel");
  auto options = std::make_shared<MlpArguments>();
  command->add_option("--engine", options->engine, "Engine of the gradients' average")
      ->capture_default_str();
  command
      ->add_option("--steps", options->bench.steps,
                   "Steps of each repeat (default: what fits the budget)")
      ->check(at_least(1));
  command->add_option("--repeats", options->bench.repeats, "Repeats, of which the median counts")
      ->check(between(1, 1000))
      ->capture_default_str();
  command->add_option("--budget", options->budget, "Seconds for all repeats together")
      ->check(between(0.01, 3600.0))
      ->capture_default_str();
  command->add_flag("--no-sync", options->no_sync,
                    "In turn also without averaging, for what averaging costs");
  command->add_flag("--json", options->json, "One line of JSON, for machines");
  add_launch_flags(*command, options->flags);
  command->footer(
      "Examples:\n"
      "  troika bench mlp --ranks 2\n"
      "  troika bench mlp --ranks 4 --no-sync --json");
  command->callback([options, &action] { action = [options] { return run_mlp(*options); }; });
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  CLI::App* bench =
      app.add_subcommand("bench", "Time communication, or the steps of a small model");
  bench->require_subcommand(1);
  add_comm(*bench, action);
  add_mlp(*bench, action);
  bench->footer("Examples:\n  troika bench comm --ranks 2\n  troika bench mlp --ranks 2");
}

}  // namespace troika
