// What the subcommands that start ranks have in common: their flags, their own command line for a
// rank, and how a failed job ends.
#pragma once

#include <troika/launch/agent.h>
#include <troika/launch/exit_report.h>
#include <troika/launch/options.h>
#include <troika/launch/restart.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace troika {

// Adds --ranks, --ranks-per-node, --nodes, --node-rank, --rendezvous, and torchrun's names for
// them.
void add_launch_flags(CLI::App& command, LaunchFlags& flags);

// Keeps the words of main() for current_command_line(). Call it once, before any thread starts.
void set_command_line(std::span<const char* const> words);

// Returns this very command line, to be run again as a rank.
[[nodiscard]] std::vector<std::string> current_command_line();

// Tells the processes of this job on other hosts, which wait for this one, that it cannot begin.
// Waits some seconds for them where it has to. Says nothing where it cannot: the user reads the
// error itself.
void report_to_other_hosts(const LaunchFlags& flags, const Environment& environment,
                           const Error& error);

// Returns the cores that each rank of this host is to be bound to where ranks choose devices by
// `word`: those nearest to its device, or none. Opens no device.
[[nodiscard]] std::vector<CoreList> cores_near_devices(std::string_view word, int ranks_per_node);

// Starts the ranks, and prints what ended the job when it did not go well. Returns the exit code.
[[nodiscard]] int launch_and_report(const LaunchOptions& options);
[[nodiscard]] int report_result(const LaunchResult& result);

// Calls run_with_restarts() with flight recorders: in options.recorders, else where the environment
// says (TROIKA_RECORDERS), else in a private folder. A private folder is removed unless the job has
// failed. Then the hint says how to look at it. Throws as run_ranks() does, and StorageError.
[[nodiscard]] LaunchResult run_with_recorders(LaunchOptions options,
                                              const RestartPolicy& policy = {});

// Does the work of a rank that our launcher has started. Its exit report, the JSON that `work`
// returns or its error, goes to the launcher, which shows it to the user. Returns the exit code.
[[nodiscard]] int run_for_launcher(const Environment& environment, Reporter& reporter,
                                   const std::function<std::string()>& work);

}  // namespace troika
