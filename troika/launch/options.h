// How many ranks to start and where, from the flags of the command line; or that none are to be
// started, because a launcher has done so already.
#pragma once

#include <troika/rendezvous/world.h>

#include <filesystem>
#include <optional>
#include <string>
#include <variant>

namespace troika {

// The values of --ranks, --ranks-per-node, --nodes, --node-rank, --rendezvous (and torchrun's names
// for them).
struct LaunchFlags {
  std::optional<int> ranks = {};  // in total
  std::optional<int> ranks_per_node = {};
  std::optional<int> nodes = {};
  std::optional<int> node_rank = {};
  std::optional<std::string> rendezvous = {};

  [[nodiscard]] bool any() const {
    return ranks || ranks_per_node || nodes || node_rank || rendezvous;
  }
};

// The facts that the number of ranks follows from when no flag gives it.
struct RankDefaults {
  int axes = 1;           // product of the mesh axes that the recipe gives
  bool all_axes = false;  // whether it gives all of them, so that the product is the number
  int usable_cores = 1;
  int devices = 0;  // that ranks take, one each; 0 where they compute on the host
};

// Returns the facts of this host for a program that the launcher knows nothing of: its GPUs,
// one for each local rank, and its cores. Reads files below `root`.
[[nodiscard]] RankDefaults defaults_of_host(const std::filesystem::path& root = "/");

struct LaunchPlan {
  int ranks = 1;  // in total: nodes * ranks_per_node
  int ranks_per_node = 1;
  int nodes = 1;
  int node_rank = 0;
  std::optional<Endpoint> rendezvous;  // always set for several nodes
};

// Returns the product of the axes where the recipe gives them all. Else returns as many as there
// are devices for, or usable cores up to 2, in multiples of that product and at least one of it.
[[nodiscard]] int default_ranks(const RankDefaults& defaults);

// Completes the flags. Throws UsageError naming the flag that is missing, out of range or
// contradicts another.
[[nodiscard]] LaunchPlan plan_launch(const LaunchFlags& flags, const RankDefaults& defaults);

// Completes the flags where nothing is going to be started. Hosts need neither numbers nor a
// rendezvous, and their number may follow from --ranks and --ranks-per-node.
[[nodiscard]] LaunchPlan plan_without_launch(LaunchFlags flags, const RankDefaults& defaults);

// Returns a World where this process is one of its ranks, and a LaunchPlan where it is to start
// ranks. Flags win over the environment, except in a rank that troika's launcher has started with
// those very flags. Throws UsageError as plan_launch and world_from_environment do.
[[nodiscard]] std::variant<World, LaunchPlan> join_or_launch(const LaunchFlags& flags,
                                                             const RankDefaults& defaults,
                                                             const Environment& environment);

}  // namespace troika
