#include <troika/base/error.h>
#include <troika/launch/options.h>
#include <troika/observe/machine.h>

#include <algorithm>

namespace troika {
namespace {

constexpr int kMostRanks = 65536;

void check_range(std::optional<int> value, const std::string& flag, int low, int high) {
  if (!value || (*value >= low && *value <= high)) return;
  throw UsageError(flag + " " + std::to_string(*value) + " is not between " + std::to_string(low) +
                       " and " + std::to_string(high),
                   low == 1 ? "leave " + flag + " out for what fits the recipe and this machine"
                            : "the hosts are numbered from 0; --nodes says how many there are");
}

void need(bool given, const std::string& flag, const std::string& hint) {
  if (!given) throw UsageError("--nodes is given, but " + flag + " is not", hint);
}

void check_ranges(const LaunchFlags& flags) {
  check_range(flags.ranks, "--ranks", 1, kMostRanks);
  check_range(flags.ranks_per_node, "--ranks-per-node", 1, kMostRanks);
  check_range(flags.nodes, "--nodes", 1, kMostRanks);
}

void check_nodes(const LaunchFlags& flags) {
  const int nodes = flags.nodes.value_or(1);
  if (flags.node_rank && !flags.nodes) {
    throw UsageError("--node-rank is given, but --nodes is not",
                     "say how many hosts take part: --nodes N");
  }
  check_range(flags.node_rank, "--node-rank", 0, nodes - 1);
  if (nodes == 1) return;
  need(flags.node_rank.has_value(), "--node-rank",
       "number the hosts: --node-rank 0 on the one that --rendezvous names, then 1, 2, ...");
  need(flags.rendezvous.has_value(), "--rendezvous",
       "name a port of node 0 that all hosts can reach: --rendezvous 10.0.0.1:29500");
}

// Ranks on this node, by whichever of the two flags is there.
int ranks_on_node(const LaunchFlags& flags, int nodes, const RankDefaults& defaults) {
  if (flags.ranks && flags.ranks_per_node && *flags.ranks != nodes * *flags.ranks_per_node) {
    throw UsageError("--ranks " + std::to_string(*flags.ranks) + " is not --nodes " +
                         std::to_string(nodes) + " times --ranks-per-node " +
                         std::to_string(*flags.ranks_per_node),
                     "leave one of them out");
  }
  if (flags.ranks_per_node) return *flags.ranks_per_node;
  if (!flags.ranks && !defaults.all_axes) return default_ranks(defaults);
  const int ranks = flags.ranks.value_or(defaults.axes);
  if (ranks % nodes != 0) {
    throw UsageError(std::to_string(ranks) + " ranks cannot be spread evenly over --nodes " +
                         std::to_string(nodes),
                     "use " + std::to_string((ranks + nodes - 1) / nodes * nodes) +
                         " ranks, or say --ranks-per-node");
  }
  return ranks / nodes;
}

LaunchPlan complete(const LaunchFlags& flags, const RankDefaults& defaults) {
  LaunchPlan plan;
  plan.nodes = flags.nodes.value_or(1);
  plan.node_rank = flags.node_rank.value_or(0);
  plan.ranks_per_node = ranks_on_node(flags, plan.nodes, defaults);
  if (plan.ranks_per_node > kMostRanks / plan.nodes) {
    throw UsageError("--nodes " + std::to_string(plan.nodes) + " with " +
                     std::to_string(plan.ranks_per_node) + " ranks each are more than " +
                     std::to_string(kMostRanks) + " ranks");
  }
  plan.ranks = plan.nodes * plan.ranks_per_node;
  if (flags.rendezvous) plan.rendezvous = parse_endpoint(*flags.rendezvous, "--rendezvous");
  return plan;
}

}  // namespace

RankDefaults defaults_of_host(const std::filesystem::path& root) {
  RankDefaults defaults;
  defaults.usable_cores = usable_cores();
  defaults.devices = count_gpu_devices(root);
  return defaults;
}

int default_ranks(const RankDefaults& defaults) {
  constexpr int kMostCores = 2;
  const int axes = std::max(1, defaults.axes);
  if (defaults.all_axes) return axes;
  const int fitting =
      defaults.devices > 0 ? defaults.devices : std::min(defaults.usable_cores, kMostCores);
  return std::max(1, fitting / axes) * axes;
}

LaunchPlan plan_launch(const LaunchFlags& flags, const RankDefaults& defaults) {
  check_ranges(flags);
  check_nodes(flags);
  return complete(flags, defaults);
}

LaunchPlan plan_without_launch(LaunchFlags flags, const RankDefaults& defaults) {
  check_ranges(flags);
  if (!flags.nodes && flags.ranks && flags.ranks_per_node) {
    if (*flags.ranks % *flags.ranks_per_node != 0) {
      throw UsageError(std::to_string(*flags.ranks) + " ranks do not fill hosts of " +
                           std::to_string(*flags.ranks_per_node),
                       "--ranks is a multiple of --ranks-per-node");
    }
    flags.nodes = *flags.ranks / *flags.ranks_per_node;
  }
  return complete(flags, defaults);
}

std::variant<World, LaunchPlan> join_or_launch(const LaunchFlags& flags,
                                               const RankDefaults& defaults,
                                               const Environment& environment) {
  if (!flags.any() || environment.has("TROIKA_LAUNCHER_PID")) {
    if (auto world = world_from_environment(environment)) return *std::move(world);
  }
  return plan_launch(flags, defaults);
}

}  // namespace troika
