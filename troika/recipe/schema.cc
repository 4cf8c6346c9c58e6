#include <troika/recipe/recipe.h>
#include <troika/schedule/generate.h>

namespace troika {

template <>
std::span<const std::string_view> names_of<Precision>() {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"auto", "fp64", "fp32", "bf16", "fp16"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<OnNonFinite>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"stop", "skip"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<Offload>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"none", "optimizer"});
  return kNames;
}

namespace {

Recipe& recipe_at(void* document) {
  return *static_cast<Recipe*>(document);
}

template <auto kMember>
void* section_at(void* document) {
  return &(recipe_at(document).*kMember);
}

std::vector<std::string_view> pipeline_schedules() {
  return {schedule_names().begin(), schedule_names().end()};
}

// clang-format off
std::vector<Key> top_keys() {
  using K = KeysOf<Recipe>;
  return {
      K::text<&Recipe::name>("name", "the run's name, and its folder under `runs_dir`").required(),
      K::integer<&Recipe::seed>("seed", ranges::kAny, "keys initial values, the order of samples and dropout"),
      K::text<&Recipe::runs_dir>("runs_dir", "where run folders are made; relative to the current folder"),
  };
}

std::vector<Key> train_keys() {
  using O = TrainOptions;
  using K = KeysOf<O>;
  return {
      K::integer<&O::steps>("steps", ranges::kCount, "optimiser steps"),
      K::integer<&O::global_batch_size>("global_batch_size", ranges::kCount, "samples per optimiser step, over all ranks; need not divide"),
      K::integer<&O::micro_batch_size>("micro_batch_size", ranges::kCount, "samples per forward pass"),
      K::choice<&O::precision>("precision", "auto: bf16 where the machine has it natively, else fp32"),
      K::text<&O::device>("device", "what ranks compute on: \"cpu\", \"cuda\" (the GPUs of a host in turn) or \"cuda:1\"; auto: a GPU for each rank of the host where there are so many, else the CPU"),
      K::number<&O::grad_clip>("grad_clip", ranges::kNonNegative, "largest global gradient norm; 0: off"),
      K::integer<&O::evaluate_every_steps>("evaluate_every_steps", ranges::kCountOrOff, "held-out loss this often; 0: never"),
      K::auto_integer<&O::evaluation_samples>("evaluation_samples", ranges::kPositive, "held-out samples of an evaluation; auto: 64, or a step's batch where that is more; \"all\": every one", "all"),
      K::texts<&O::metrics>("metrics", "of the held-out samples, beside the loss: accuracy, top_K (as in top_5), f1, auc, rmse, perplexity"),
      K::text<&O::best_metric>("best_metric", "keep the model that is best by loss, or by one of `metrics`, as best.safetensors; none: only the last"),
      K::integer<&O::early_stop_patience>("early_stop_patience", ranges::kCountOrOff, "end the run after this many evaluations without a better best_metric; 0: off"),
      K::boolean<&O::deterministic>("deterministic", "reduce in rank order also where \"auto\" joins two engines across hosts; one engine always does, and so do runs whose stages share tied embeddings, or whose groups are spread over the hosts in different patterns"),
      K::choice<&O::on_nonfinite>("on_nonfinite", "when the loss or a gradient is not finite"),
  };
}

std::vector<Key> parallel_keys() {
  using O = ParallelOptions;
  using K = KeysOf<O>;
  constexpr IntegerRange kAxis{1, 10'000};
  return {
      K::auto_integer<&O::data>("data", kAxis, "auto: all ranks that the other axes leave"),
      K::integer<&O::tensor>("tensor", kAxis, "ranks that split every layer"),
      K::integer<&O::pipeline>("pipeline", kAxis, "ranks that split the row of layers"),
      K::integer<&O::context>("context", kAxis, "ranks that split a sequence"),
      K::integer<&O::zero_stage>("zero_stage", {0, 3}, "what data-parallel ranks share out: 1 optimiser state, 2 + gradients, 3 + parameters"),
      K::integer<&O::shard>("shard", {0, 10'000}, "> 0: shard inside groups of this size, replicate across them"),
      K::choice<&O::offload>("offload", "what lives in the host's memory instead of the device's"),
      K::word<&O::pipeline_schedule>("pipeline_schedule", pipeline_schedules, "the order of forward and backward passes"),
      K::integer<&O::virtual_stages>("virtual_stages", {1, 10'000}, "virtual stages per pipeline rank"),
      K::integers<&O::stage_units>("stage_units", ranges::kSize, "units (of gpt: embedding, layers, head) of each stage; []: cut by their cost"),
      K::choice<&O::activation_checkpoint>("activation_checkpoint", "what is computed again in the backward pass"),
  };
}

std::vector<Key> checkpoint_keys() {
  using O = CheckpointOptions;
  using K = KeysOf<O>;
  return {
      K::integer<&O::every_steps>("every_steps", ranges::kCountOrOff, "a checkpoint this often; 0: never"),
      K::integer<&O::keep>("keep", ranges::kPositive, "how many checkpoints to keep"),
      K::seconds<&O::timeout_seconds>("timeout_seconds", "writing files: the model, dumps, or a checkpoint"),
  };
}

std::vector<Key> observe_keys() {
  using O = ObserveOptions;
  using K = KeysOf<O>;
  return {
      K::integers<&O::trace_steps>("trace_steps", ranges::kPositive, "[first, last] step of a Chrome/Perfetto trace"),
      K::integer<&O::prometheus_port>("prometheus_port", {0, 65535}, "serves /metrics; 0: off"),
      K::boolean<&O::tensorboard>("tensorboard", "write TensorBoard event files"),
  };
}

std::vector<Key> debug_keys() {
  using O = DebugOptions;
  using K = KeysOf<O>;
  return {
      K::integers<&O::dump_steps>("dump_steps", ranges::kPositive, "writes <run>/dump/step-K/{batch,parameters,gradients}.safetensors (step 1 is the first)"),
  };
}
// clang-format on

constexpr auto kModel = [](void* document) -> ModelOptions& { return recipe_at(document).model; };
constexpr auto kLoss = [](void* document) -> LossOptions& {
  return recipe_at(document).model.loss;
};
constexpr auto kData = [](void* document) -> DataOptions& { return recipe_at(document).data; };
constexpr auto kOptimizer = [](void* document) -> Chosen<OptimizerKind>& {
  return recipe_at(document).optimizer.kind;
};

std::vector<Section> sections() {
  std::vector<Key> optimizer = optimizer_keys();
  optimizer.insert(optimizer.begin(), kind_key<kOptimizer>("the optimiser"));
  const Key loss = kind_key<kLoss>("of class indices, of answers (0 or 1), or of values", "loss");
  return {
      {"", top_keys(), [](void* document) { return document; }},
      {"model",
       {kind_key<kModel>("which model; picks the keys below").required(), loss},
       nullptr,
       [](void* document) -> Options& { return kModel(document).options(); }},
      {"loss",
       {},
       nullptr,
       [](void* document) -> Options& { return kLoss(document).options(); },
       OtherKinds::kRefused,
       KindChoice{std::get<KindSpec>(loss.spec), "model", loss.name}},
      {"data",
       {kind_key<kData>("text files, token shards, or random numbers").required()},
       nullptr,
       [](void* document) -> Options& { return kData(document).options(); },
       OtherKinds::kUnused},
      {"train", train_keys(), section_at<&Recipe::train>},
      {"optimizer", optimizer, section_at<&Recipe::optimizer>,
       [](void* document) -> Options& { return kOptimizer(document).options(); },
       OtherKinds::kUnused},
      {"parallel", parallel_keys(), section_at<&Recipe::parallel>},
      {"comm", comm_keys(), section_at<&Recipe::comm>},
      {"checkpoint", checkpoint_keys(), section_at<&Recipe::checkpoint>},
      {"observe", observe_keys(), section_at<&Recipe::observe>},
      {"debug", debug_keys(), section_at<&Recipe::debug>},
  };
}

}  // namespace

const Schema& recipe_schema() {
  static const Schema kSchema(sections(),
                              [] { return std::shared_ptr<void>(std::make_shared<Recipe>()); });
  return kSchema;
}

}  // namespace troika
