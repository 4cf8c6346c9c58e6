// The recipe: everything that `troika train recipe.toml` can be told, as plain typed values: the
// sum of what its components declare. The member names are the keys of the file. docs/recipe.md
// describes every key; recipe_file.h reads and writes it.
#pragma once

#include <troika/comm/options.h>
#include <troika/config/schema.h>
#include <troika/data/kind.h>
#include <troika/models/kind.h>
#include <troika/nn/stage.h>
#include <troika/optim/options.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

enum class Precision { kAuto, kFloat64, kFloat32, kBFloat16, kFloat16 };
enum class OnNonFinite { kStop, kSkip };
enum class Offload { kNone, kOptimizer };

template <>
std::span<const std::string_view> names_of<Precision>();
template <>
std::span<const std::string_view> names_of<OnNonFinite>();
template <>
std::span<const std::string_view> names_of<Offload>();

// Words of [train] best_metric that are no metric's.
inline constexpr const char* kNoMetric = "none";
inline constexpr const char* kLossMetric = "loss";

struct TrainOptions {
  std::int64_t steps = 200;
  std::int64_t global_batch_size = 64;
  std::int64_t micro_batch_size = 8;
  Precision precision = Precision::kAuto;
  std::string device = "auto";
  double grad_clip = 1.0;
  std::int64_t evaluate_every_steps = 50;
  std::optional<std::int64_t> evaluation_samples;  // absent: "auto"
  std::vector<std::string> metrics;
  std::string best_metric = kNoMetric;
  std::int64_t early_stop_patience = 0;
  bool deterministic = false;
  OnNonFinite on_nonfinite = OnNonFinite::kStop;

  bool operator==(const TrainOptions&) const = default;
};

struct ParallelOptions {
  std::optional<std::int64_t> data;  // absent: "auto"
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t context = 1;
  std::int64_t zero_stage = 0;
  std::int64_t shard = 0;
  Offload offload = Offload::kNone;
  std::string pipeline_schedule = "1f1b";
  std::int64_t virtual_stages = 1;
  std::vector<std::int64_t> stage_units;  // by stage; empty: cut by cost
  ActivationCheckpoint activation_checkpoint = ActivationCheckpoint::kNone;

  bool operator==(const ParallelOptions&) const = default;
};

struct CheckpointOptions {
  std::int64_t every_steps = 100;
  std::int64_t keep = 3;
  double timeout_seconds = 1800;

  bool operator==(const CheckpointOptions&) const = default;
};

struct ObserveOptions {
  std::vector<std::int64_t> trace_steps;  // empty or {first, last}
  std::int64_t prometheus_port = 0;
  bool tensorboard = true;

  bool operator==(const ObserveOptions&) const = default;
};

struct DebugOptions {
  std::vector<std::int64_t> dump_steps;

  bool operator==(const DebugOptions&) const = default;
};

struct Recipe {
  std::string name;
  std::int64_t seed = 1337;
  std::string runs_dir = "runs";
  ModelOptions model;
  DataOptions data;
  TrainOptions train;
  OptimizerOptions optimizer;
  ParallelOptions parallel;
  CommOptions comm;
  CheckpointOptions checkpoint;
  ObserveOptions observe;
  DebugOptions debug;

  bool operator==(const Recipe&) const = default;
};

// Returns the sections and keys of a recipe; its documents are Recipes.
[[nodiscard]] const Schema& recipe_schema();

}  // namespace troika
