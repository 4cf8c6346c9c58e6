// The command `troika launch`.
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/version.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/cli/ranks.h>
#include <troika/observe/log.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

constexpr int kMostRestarts = 1'000'000;

struct LaunchArguments {
  LaunchFlags flags;
  double rendezvous_timeout = 300;
  int max_restarts = 0;
  std::optional<double> timeout;
  std::string recorders;
  std::vector<std::string> command;
};

int launch(const LaunchArguments& options) {
  configure_log({});
  const RankDefaults defaults = defaults_of_host();
  LaunchOptions launch;
  launch.plan = plan_launch(options.flags, defaults);
  if (!options.flags.ranks && !options.flags.ranks_per_node && defaults.devices > 0) {
    log_info("starting " + plural(launch.plan.ranks_per_node, "rank") +
             " on this host, one for each GPU; --ranks starts another number");
  }
  launch.command = options.command;
  launch.version = kVersion;
  launch.report_policy = ReportPolicy::kOptional;
  launch.rendezvous_timeout = Seconds(options.rendezvous_timeout);
  launch.recorders = options.recorders;
  if (options.timeout) launch.environment["TROIKA_TIMEOUT"] = std::to_string(*options.timeout);
  return report_result(run_with_recorders(
      std::move(launch), {.max_restarts = options.max_restarts, .by = RestartsBy::kCount}));
}

constexpr const char* kLaunchExamples =
    "Examples:\n"
    "  troika launch --ranks 2 -- ./simulate --steps 100\n"
    "  troika launch --nodes 2 --node-rank 0 --ranks-per-node 8 --rendezvous host0:29500 -- "
    "./simulate\n\n"
    "Without --ranks there is one for each GPU of the host that CUDA_VISIBLE_DEVICES leaves, "
    "whether\nPROGRAM uses it or not; without GPUs one for each usable core, up to 2. A troika "
    "program's ranks\ntake the GPUs in turn (SessionOptions::device).\n\n"
    "Each rank runs PROGRAM with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,\n"
    "...), which troika::Session::from_environment() reads, and torch.distributed as well. The "
    "store\n"
    "that the ranks meet at is the launcher's. A rank that ends with another status than 0 ends "
    "the\n"
    "job, with exit code 5, or starts it again with --max-restarts: a program goes on from its "
    "own\n"
    "checkpoint (troika::Checkpoint), and TORCHELASTIC_RESTART_COUNT says which start it is.";

}  // namespace

void add_launch_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("launch", "Start a program of your own on several ranks");
  auto options = std::make_shared<LaunchArguments>();
  command->add_option("PROGRAM", options->command, "What each rank runs, with its arguments")
      ->required();
  command->positionals_at_end();
  add_launch_flags(*command, options->flags);
  command
      ->add_option("--rendezvous-timeout", options->rendezvous_timeout,
                   "Seconds for the other hosts to come")
      ->check(timeout_seconds())
      ->group("Ranks")
      ->capture_default_str();
  command
      ->add_option("--timeout", options->timeout,
                   "Seconds for one collective of the ranks (default: SessionOptions::timeout, 60)")
      ->check(timeout_seconds())
      ->group("Ranks");
  command
      ->add_option("--max-restarts", options->max_restarts,
                   "Start all ranks again so often after one has died")
      ->check(between(0, kMostRestarts))
      ->group("Ranks")
      ->capture_default_str();
  command
      ->add_option(
          "--recorders", options->recorders,
          "Keep the ranks' flight recorders here, for `troika inspect` (default: only those "
          "of a job that fails, among the temporary files)")
      ->type_name("DIR");
  command->footer(kLaunchExamples);
  command->callback([options, &action] { action = [options] { return launch(*options); }; });
}

}  // namespace troika
