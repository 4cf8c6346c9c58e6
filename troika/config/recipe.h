// The recipe: everything that `troika train recipe.toml` can be told, as plain typed values. The
// member names are the keys of the file. docs/recipe.md describes every key; recipe_file.h reads
// and writes it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

enum class ModelKind { kGpt, kMlp };
enum class Norm { kRmsNorm, kLayerNorm };
enum class Position { kRope, kLearned };
enum class ActivationFunction { kSwiGlu, kGelu, kGeluTanh, kRelu, kTanh };
enum class Loss { kCrossEntropy, kMeanSquare };
enum class DataKind { kText, kTokens, kRandom };
enum class Pack { kConcatenate, kIsolated, kPad };
enum class Precision { kAuto, kFloat64, kFloat32, kBFloat16, kFloat16 };
enum class OnNonFinite { kStop, kSkip };
enum class OptimizerKind { kSgd, kAdamW, kLamb, kLars };
enum class ScheduleKind { kConstant, kLinear, kCosine, kWsd };
enum class PipelineScheduleKind { kGpipe, k1F1B, kInterleaved1F1B, kZbH1, kZbH2, kZbV };
enum class ActivationCheckpoint { kNone, kSelective, kFull };
enum class EngineKind { kAuto, kShm, kGloo, kMpi, kNccl, kFake };
enum class Offload { kNone, kOptimizer };

struct ModelRecipe {
  ModelKind kind = ModelKind::kGpt;
  // gpt
  std::int64_t layers = 6;
  std::int64_t dim = 384;
  std::int64_t heads = 6;
  std::int64_t kv_heads = 6;   // default: heads
  std::int64_t head_dim = 64;  // default: dim / heads
  std::int64_t ffn_dim = 1024;
  std::int64_t vocab_size = 256;
  std::int64_t seq_len = 256;
  Norm norm = Norm::kRmsNorm;
  double norm_eps = 1e-5;
  Position position = Position::kRope;
  double rope_theta = 10000.0;
  ActivationFunction activation =
      ActivationFunction::kSwiGlu;  // gpt: swiglu, gelu, gelu_tanh; mlp: relu (its default), gelu,
                                    // tanh
  bool tied_embeddings = true;
  bool bias = false;
  double dropout = 0.0;
  // mlp
  std::int64_t input_dim = 0;
  std::vector<std::int64_t> hidden_dims;
  std::int64_t output_dim = 0;
  Loss loss = Loss::kCrossEntropy;

  bool operator==(const ModelRecipe&) const = default;
};

struct DataRecipe {
  DataKind kind = DataKind::kText;
  std::vector<std::string> paths;
  std::vector<double> weights;
  std::string tokenizer = "bytes";
  Pack pack = Pack::kConcatenate;
  double held_out_fraction = 0.01;

  bool operator==(const DataRecipe&) const = default;
};

struct TrainRecipe {
  std::int64_t steps = 200;
  std::int64_t global_batch_size = 64;
  std::int64_t micro_batch_size = 8;
  Precision precision = Precision::kAuto;
  double grad_clip = 1.0;
  std::int64_t evaluate_every_steps = 50;
  bool deterministic = false;
  OnNonFinite on_nonfinite = OnNonFinite::kStop;

  bool operator==(const TrainRecipe&) const = default;
};

struct OptimizerRecipe {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.1;
  ScheduleKind schedule = ScheduleKind::kCosine;
  std::int64_t warmup_steps = 20;
  double min_lr = 1e-4;
  std::int64_t lr_base_batch_size = 0;

  bool operator==(const OptimizerRecipe&) const = default;
};

struct ParallelRecipe {
  std::optional<std::int64_t> data;  // absent: "auto"
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t context = 1;
  std::int64_t zero_stage = 0;
  std::int64_t shard = 0;
  Offload offload = Offload::kNone;
  PipelineScheduleKind pipeline_schedule = PipelineScheduleKind::k1F1B;
  std::int64_t virtual_stages = 1;
  std::vector<std::int64_t> stage_units;  // by stage; empty: cut by cost
  ActivationCheckpoint activation_checkpoint = ActivationCheckpoint::kNone;

  bool operator==(const ParallelRecipe&) const = default;
};

struct CommRecipe {
  EngineKind engine = EngineKind::kAuto;
  double timeout_seconds = 60;
  double rendezvous_timeout_seconds = 300;

  bool operator==(const CommRecipe&) const = default;
};

struct CheckpointRecipe {
  std::int64_t every_steps = 100;
  std::int64_t keep = 3;
  double timeout_seconds = 1800;

  bool operator==(const CheckpointRecipe&) const = default;
};

struct ObserveRecipe {
  std::vector<std::int64_t> trace_steps;  // empty or {first, last}
  std::int64_t prometheus_port = 0;
  bool tensorboard = true;

  bool operator==(const ObserveRecipe&) const = default;
};

struct DebugRecipe {
  std::vector<std::int64_t> dump_steps;

  bool operator==(const DebugRecipe&) const = default;
};

struct Recipe {
  std::string name;
  std::int64_t seed = 1337;
  std::string runs_dir = "runs";
  ModelRecipe model;
  DataRecipe data;
  TrainRecipe train;
  OptimizerRecipe optimizer;
  ParallelRecipe parallel;
  CommRecipe comm;
  CheckpointRecipe checkpoint;
  ObserveRecipe observe;
  DebugRecipe debug;

  bool operator==(const Recipe&) const = default;
};

}  // namespace troika
