#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/failure_timing.h>
#include <troika/base/own_program.h>
#include <troika/base/process_stop.h>
#include <troika/cli/ranks.h>
#include <troika/device/choose.h>
#include <troika/device/facts.h>
#include <troika/launch/launcher_watch.h>
#include <troika/launch/nodes.h>
#include <troika/launch/recorder_folder.h>
#include <troika/rendezvous/failure_report.h>
#include <troika/session/host_position.h>
#include <troika/session/session.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <variant>

namespace troika {

void add_launch_flags(CLI::App& command, LaunchFlags& flags) {
  const std::string group = "Ranks";
  command.add_option("--ranks", flags.ranks, "Ranks in total, over all hosts")->group(group);
  command
      .add_option("--ranks-per-node,--nproc-per-node", flags.ranks_per_node, "Ranks on each host")
      ->group(group);
  command.add_option("--nodes,--nnodes", flags.nodes, "Hosts")->group(group);
  command.add_option("--node-rank", flags.node_rank, "Which of the hosts this one is, from 0")
      ->group(group);
  command
      .add_option("--rendezvous,--rdzv-endpoint", flags.rendezvous,
                  "A port of the host with --node-rank 0, for all to meet at")
      ->type_name("HOST:PORT")
      ->group(group);
}

namespace {

std::vector<std::string>& kept_command_line() {
  static std::vector<std::string> words;
  return words;
}

}  // namespace

void set_command_line(std::span<const char* const> words) {
  kept_command_line().assign(words.begin(), words.end());
}

void report_to_other_hosts(const LaunchFlags& flags, const Environment& environment,
                           const Error& error) {
  // Those that are waiting come at once.
  const Deadline deadline = Deadline::in(failure_timing::kReadBeforeStoreGoes);
  try {
    const auto role = join_or_launch(flags, RankDefaults(), environment);
    if (const auto* world = std::get_if<World>(&role)) {
      report_failure(*world, failure_of(error), deadline);
    } else {
      Nodes::report_failure(std::get<LaunchPlan>(role), failure_of(error), deadline);
    }
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const Error&) {
  }
}

std::vector<std::string> current_command_line() {
  std::vector<std::string> words = kept_command_line();
  check(!words.empty(), "main() has kept no command line");
  words[0] = own_program().string();
  return words;
}

std::vector<CoreList> cores_near_devices(std::string_view word, int ranks_per_node) {
  HostPosition place = host_position(World(), Environment::of_process());
  place.size = ranks_per_node;
  if (place.devices_are_own) return {};  // which they are, only the ranks see
  std::vector<CoreList> nearest;
  for (; place.rank < place.size; ++place.rank) {
    const at::Device device = choose_device(word, place, "train.device");
    if (device.is_cpu()) return {};
    nearest.push_back(parse_core_list(fixed_facts_of(device).nearest_cores));
  }
  return divide_cores(nearest, allowed_cores());
}

int launch_and_report(const LaunchOptions& options) {
  return report_result(run_ranks(options));
}

LaunchResult run_with_recorders(LaunchOptions options, const RestartPolicy& policy) {
  if (options.recorders.empty()) {
    options.recorders = Environment::of_process().text_or("TROIKA_RECORDERS", "");
  }
  RecorderFolder folder(options.recorders);
  options.recorders = folder.path();
  LaunchResult result = run_with_restarts(options, policy);
  if (!result.failure || !folder.has_operations()) return result;
  folder.keep();
  std::string& hint = result.failure->hint;
  if (!hint.empty()) hint += "; ";
  hint += "`troika inspect " + folder.path().string() + "` shows what each rank did last";
  return result;
}

int report_result(const LaunchResult& result) {
  if (result.failure) {
    std::cerr << "troika: " << result.failure->message << "\n";
    if (!result.failure->hint.empty()) std::cerr << "hint: " << result.failure->hint << "\n";
  }
  return result.exit_code;
}

int run_for_launcher(const Environment& environment, Reporter& reporter,
                     const std::function<std::string()>& work) {
  try {
    const LauncherWatch watch(environment);
    stop_clock_when_stopped();
    reporter.result(work());
    return 0;
  } catch (const std::exception& error) {
    reporter.error(error);
    return static_cast<int>(failure_of(error).code);
  }
}

}  // namespace troika
