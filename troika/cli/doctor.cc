// troika doctor: what this machine has, what to do about what it lacks, and how fast each engine is
// between two ranks, which it starts as `troika train` does.
#include <ATen/Parallel.h>
#include <troika/base/error.h>
#include <troika/base/own_program.h>
#include <troika/base/version.h>
#include <troika/cli/command.h>
#include <troika/cli/doctor_report.h>
#include <troika/cli/ranks.h>
#include <troika/launch/agent.h>
#include <troika/launch/exit_report.h>
#include <troika/rendezvous/rendezvous.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace troika {
namespace {

constexpr int kRanks = 2;
constexpr Seconds kPatience{30};
constexpr std::int64_t kSmallBytes = 4096;
constexpr std::int64_t kLargeBytes = std::int64_t{64} << 20;

struct DoctorArguments {
  bool json = false;
  std::string measured_engine;  // set for the ranks that the doctor starts
};

EngineFacts facts_of(const std::string& name) {
  for (const EngineFacts& each : list_engines()) {
    if (each.name == name) return each;
  }
  throw UsageError("no engine is called '" + name + "'");
}

nlohmann::json row_of(const AllReduceTiming& timing) {
  return {timing.bytes, timing.time.count(), timing.bus_bandwidth};
}

AllReduceTiming timing_of(const nlohmann::json& json) {
  return {json.at(0), Seconds(json.at(1).get<double>()), json.at(2)};
}

std::string measure(const EngineFacts& engine, const Environment& environment) {
  const std::optional<World> world = world_from_environment(environment);
  check(world.has_value() && world->size > 1, "the doctor's ranks are started by a launcher");
  at::set_num_threads(1);
  Rendezvous rendezvous =
      Rendezvous::join(*world, {std::string(kVersion), "doctor"}, Deadline::in(kPatience));
  nlohmann::json result;
  {
    std::vector<int> ranks;
    for (int rank = 0; rank < world->size; ++rank) ranks.push_back(rank);
    EngineOptions options;
    options.engine = engine.name;
    options.store = &rendezvous.store();
    options.rendezvous_timeout = kPatience;
    const Group group = make_group("doctor", ranks, world->rank, options);
    result["latency"] = row_of(time_all_reduce(group, kSmallBytes, 200, kPatience));
    result["bandwidth"] = row_of(time_all_reduce(group, kLargeBytes, 5, kPatience));
  }
  rendezvous.leave(Deadline::in(kPatience));
  return result.dump();
}

int run_as_rank(const std::string& engine) {
  const Environment environment = Environment::of_process();
  Reporter reporter(environment);
  if (!reporter.connected()) throw UsageError("--measure is for the ranks that the doctor starts");
  return run_for_launcher(environment, reporter,
                          [&] { return measure(facts_of(engine), environment); });
}

EngineFinding examine_engine(const EngineFacts& facts) {
  EngineFinding finding{.facts = facts, .latency = {}, .bandwidth = {}, .error = ""};
  if (!facts.usable || !facts.traits.carries_host_memory() || !facts.traits.exchanges()) {
    return finding;
  }
  LaunchOptions launch;
  launch.plan.ranks = kRanks;
  launch.plan.ranks_per_node = kRanks;
  launch.command = {own_program().string(), "doctor", "--measure", facts.name};
  launch.version = kVersion;
  launch.rendezvous_timeout = kPatience;
  try {
    const LaunchResult result = run_ranks(launch);
    if (result.failure && result.failure->code == ExitCode::kInterrupted) {
      throw Error(ExitCode::kInterrupted, result.failure->message);
    }
    if (result.failure) {
      finding.error = result.failure->message;
      return finding;
    }
    const auto measured = nlohmann::json::parse(result.results.at(0));
    finding.latency = timing_of(measured.at("latency"));
    finding.bandwidth = timing_of(measured.at("bandwidth"));
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInterrupted) throw;
    finding.error = error.what();
  }
  return finding;
}

int examine_machine(const DoctorArguments& options) {
  DoctorReport report;
  report.machine = examine(machine_facts(), count_gpu_devices(), load_device_plugin());
  report.devices = list_devices();
  report.devices.erase(report.devices.begin());  // the host is among the findings
  report.network = network_interfaces();
  for (const EngineFacts& each : list_engines()) report.engines.push_back(examine_engine(each));
  std::cout << (options.json ? to_json(report) + "\n" : to_text(report)) << std::flush;
  return static_cast<int>(report.healthy() ? ExitCode::kDone : ExitCode::kRendezvous);
}

}  // namespace

void add_doctor_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("doctor", "What this machine has, and how fast it talks");
  auto options = std::make_shared<DoctorArguments>();
  command->add_flag("--json", options->json, "One line of JSON, for machines");
  command->add_option("--measure", options->measured_engine)->group("");  // hidden
  command->footer(
      "Examples:\n"
      "  troika doctor\n"
      "  troika doctor --json | jq .engines\n\n"
      "An engine's columns are the time of one all-reduce of 4 KiB, and the bus bandwidth of one\n"
      "of 64 MiB. Ends with exit code 4 if an engine that should work does not.");
  command->callback([options, &action] {
    action = [options] {
      return options->measured_engine.empty() ? examine_machine(*options)
                                              : run_as_rank(options->measured_engine);
    };
  });
}

}  // namespace troika
