// Joins a job as `troika train` does, under any launcher, and prints what it has found:
//   world {"rank": 0, "size": 2, ...}
// With flags it launches its own ranks. For the tests of launchers.
#include <troika/base/error.h>
#include <troika/launch/agent.h>
#include <troika/launch/exit_report.h>
#include <troika/launch/launcher_watch.h>
#include <troika/launch/options.h>
#include <troika/rendezvous/rendezvous.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace troika {
namespace {

constexpr const char* kVersion = "1.0";

struct Arguments {
  LaunchFlags flags;
  Seconds timeout{60};
  std::vector<std::string> command;  // this one
};

Arguments read_arguments(int argc, char** argv) {
  Arguments arguments{{}, Seconds(60), std::vector<std::string>(argv, argv + argc)};
  arguments.command[0] = "/proc/self/exe";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--ranks") arguments.flags.ranks = std::stoi(value);
    if (name == "--ranks-per-node") arguments.flags.ranks_per_node = std::stoi(value);
    if (name == "--nodes") arguments.flags.nodes = std::stoi(value);
    if (name == "--node-rank") arguments.flags.node_rank = std::stoi(value);
    if (name == "--rendezvous") arguments.flags.rendezvous = value;
    if (name == "--timeout") arguments.timeout = Seconds(std::stod(value));
  }
  return arguments;
}

std::string describe(const World& world, const std::vector<Member>& members) {
  std::ostringstream text;
  text << "world {\"rank\": " << world.rank << ", \"size\": " << world.size
       << ", \"local_rank\": " << world.local_rank << ", \"local_size\": " << world.local_size
       << ", \"node_rank\": " << world.node_rank << ", \"nodes\": " << world.nodes
       << ", \"source\": \"" << world.source << "\", \"job\": \"" << world.job
       << "\", \"store\": \"" << world.store.describe() << "\", \"pid\": " << getpid()
       << ", \"addresses\": [";
  for (const Member& member : members) {
    text << (member.rank > 0 ? ", " : "") << '"' << member.address << '"';
  }
  text << "]}\n";
  return text.str();
}

void join_and_tell(World world, Seconds timeout) {
  Rendezvous rendezvous = Rendezvous::join(std::move(world), {kVersion, ""}, Deadline::in(timeout));
  const std::string line = describe(rendezvous.world(), rendezvous.members());
  // In one piece: many ranks write to one pipe.
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::perror("world_probe");
  rendezvous.leave(Deadline::in(timeout));
}

int tell(const std::string& message, const std::string& hint, int code) {
  std::cerr << "troika: " << message << "\n";
  if (!hint.empty()) std::cerr << "hint: " << hint << "\n";
  return code;
}

int launch(const Arguments& arguments, const LaunchPlan& plan) {
  LaunchOptions options;
  options.plan = plan;
  options.command = arguments.command;
  options.version = kVersion;
  options.rendezvous_timeout = arguments.timeout;
  const LaunchResult result = run_ranks(options);
  if (!result.failure) return result.exit_code;
  return tell(result.failure->message, result.failure->hint, result.exit_code);
}

int run(const Arguments& arguments) {
  const Environment environment = Environment::of_process();
  Reporter reporter(environment);
  try {
    const LauncherWatch watch(environment);
    const auto role = join_or_launch(arguments.flags, {.usable_cores = 2}, environment);
    if (const auto* plan = std::get_if<LaunchPlan>(&role)) return launch(arguments, *plan);
    join_and_tell(std::get<World>(role), arguments.timeout);
    reporter.result("{}");
    return 0;
  } catch (const Error& error) {
    if (!reporter.connected()) {
      return tell(error.what(), error.hint(), static_cast<int>(error.code()));
    }
    reporter.error(error);
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) {
  return troika::run(troika::read_arguments(argc, argv));
}
