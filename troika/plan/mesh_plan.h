// The stages, units, parameters and groups of every rank of a recipe, computed without a job: what
// `troika mesh` prints.
#pragma once

#include <troika/mesh/mesh.h>
#include <troika/recipe/recipe.h>
#include <troika/train/job.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

struct RankPlan {
  int rank = 0;
  std::string device;  // that it takes: "cuda:0", "cpu"
  Coordinates coordinates{};
  std::vector<int> stages;         // of the pipeline
  std::vector<std::string> units;  // "embedding", "layer 0", ..., "head"
  std::int64_t parameters = 0;     // elements that it computes with
  std::int64_t kept = 0;           // of these, those whose values it has between steps
  std::int64_t updated = 0;        // of these, those that its optimiser updates
  GroupRanks groups;
};

struct MeshPlan {
  Mesh mesh;
  std::int64_t parameters = 0;  // of the model
  std::vector<RankPlan> ranks;
};

// Plans the mesh of a resolved `recipe`, with `ranks_per_node` neighbouring ranks on each host.
// Each rank takes the device of its local rank, on this machine or another.
[[nodiscard]] MeshPlan plan_mesh(const Recipe& recipe, int ranks_per_node);

// Returns a table with a line a rank; it names devices where they are not the CPU.
[[nodiscard]] std::string to_text(const MeshPlan& plan);
// Returns one line.
[[nodiscard]] std::string to_json(const MeshPlan& plan);

}  // namespace troika
