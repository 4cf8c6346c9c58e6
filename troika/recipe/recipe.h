// The recipe: everything that `troika train recipe.toml` can be told, as plain typed values: the
// sum of what its components declare. The member names are the keys of the file. docs/recipe.md
// describes every key; recipe_file.h reads and writes it.
#pragma once

#include <troika/checkpoint/encryption.h>
#include <troika/comm/options.h>
#include <troika/compress/kind.h>
#include <troika/config/schema.h>
#include <troika/data/kind.h>
#include <troika/models/kind.h>
#include <troika/nn/stage.h>
#include <troika/optim/options.h>
#include <troika/param/sharding.h>
#include <troika/sync/kind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

enum class Precision { kAuto, kFloat64, kFloat32, kBFloat16, kFloat16 };
enum class OnNonFinite { kStop, kSkip };

template <>
std::span<const std::string_view> names_of<Precision>();
template <>
std::span<const std::string_view> names_of<OnNonFinite>();
template <>
std::span<const std::string_view> names_of<CutGradients>();

// The word of [checkpoint] folder for the folder of the run.
inline constexpr const char* kRunFolder = "none";
inline constexpr const char* kNoMirror = "none";
inline constexpr const char* kNoCache = "none";

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
  bool tf32 = false;
  bool cudnn_benchmark = false;
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
  CutGradients cut_gradients = CutGradients::kLastMicrobatch;
  std::string pipeline_schedule = "1f1b";
  std::int64_t virtual_stages = 1;
  std::vector<std::int64_t> stage_units;  // by stage; empty: cut by cost
  ActivationCheckpoint activation_checkpoint = ActivationCheckpoint::kNone;
  // No key: set by resolve_recipe(), from [sync]. The other axes are those of one island.
  std::int64_t islands = 1;

  bool operator==(const ParallelOptions&) const = default;
};

struct CheckpointOptions {
  std::int64_t every_steps = 0;
  double every_minutes = 10;
  std::int64_t keep = 3;
  std::int64_t keep_best = 0;
  std::string folder = kRunFolder;
  std::string mirror = kNoMirror;
  std::string key = kNoKey;
  std::int64_t staging_bytes = 0;
  double timeout_seconds = 1800;

  bool operator==(const CheckpointOptions&) const = default;
};

struct DataCacheOptions {
  std::string folder = kNoCache;
  std::int64_t bytes = std::int64_t{64} << 30;

  bool operator==(const DataCacheOptions&) const = default;
};

struct StorageOptions {
  double retry_seconds = 300;

  bool operator==(const StorageOptions&) const = default;
};

struct ElasticOptions {
  std::int64_t max_restarts = 0;
  std::int64_t min_data = 0;

  bool operator==(const ElasticOptions&) const = default;
};

// Options of connections between processes that pass requests (kind = "server").
struct SecurityOptions {
  bool tls = false;
  std::string certificate = "none", key = "none", authority = "none";  // paths of PEM files

  bool operator==(const SecurityOptions&) const = default;
};

struct ObserveOptions {
  std::vector<std::int64_t> trace_steps;  // empty or {first, last}
  std::int64_t prometheus_port = 0;
  std::string prometheus_address = "127.0.0.1";
  bool tensorboard = true;

  bool operator==(const ObserveOptions&) const = default;
};

struct DebugOptions {
  std::vector<std::int64_t> dump_steps;
  bool ledger = false;
  std::int64_t compare_replicas_every_steps = 0;
  std::vector<std::int64_t> slow_workers;  // of servers, by place from 0
  double slow_times = 1;                   // as long as others over a pass
  double sample_seconds = 0;               // that each sample of a pass waits for

  bool operator==(const DebugOptions&) const = default;
};

struct Recipe {
  std::string name;
  std::int64_t seed = 1337;
  std::string runs_dir = "runs";
  ModelOptions model;
  DataOptions data;
  DataCacheOptions data_cache;
  TrainOptions train;
  OptimizerOptions optimizer;
  ParallelOptions parallel;
  CommOptions comm;
  Chosen<SyncKind> sync;
  Chosen<CompressKind> compress;
  CheckpointOptions checkpoint;
  StorageOptions storage;
  ElasticOptions elastic;
  SecurityOptions security;
  ObserveOptions observe;
  DebugOptions debug;

  bool operator==(const Recipe&) const = default;
};

// Returns the sections and keys of a recipe; its documents are Recipes.
[[nodiscard]] const Schema& recipe_schema();

}  // namespace troika
