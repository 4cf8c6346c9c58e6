// The keys of a recipe, section by section, with their defaults, bounds and texts.
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
std::span<const std::string_view> names_of<CutGradients>() {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"last_microbatch", "each_microbatch"});
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
      K::choice<&O::precision>("precision", "auto: bf16 where the device has it natively (GPUs of compute capability 8.0, CPUs with AMX or AVX512-BF16), else fp32"),
      K::text<&O::device>("device", "what ranks compute on: \"cpu\", \"cuda\" (the GPU of its local rank) or \"cuda:1\"; auto: a GPU for each rank of the host where there are so many, else the CPU"),
      K::number<&O::grad_clip>("grad_clip", ranges::kNonNegative, "largest global gradient norm; 0: off"),
      K::integer<&O::evaluate_every_steps>("evaluate_every_steps", ranges::kCountOrOff, "held-out loss this often; 0: never"),
      K::auto_integer<&O::evaluation_samples>("evaluation_samples", ranges::kPositive, "held-out samples of an evaluation; auto: 64, or a step's batch where that is more; \"all\": every one", "all"),
      K::texts<&O::metrics>("metrics", "of the held-out samples, beside the loss: accuracy, top_K (as in top_5), f1, auc, rmse, perplexity"),
      K::text<&O::best_metric>("best_metric", "keep the model that is best by loss, or by one of `metrics`, as best.safetensors; none: only the last"),
      K::integer<&O::early_stop_patience>("early_stop_patience", ranges::kCountOrOff, "end the run after this many evaluations without a better best_metric; 0: off"),
      K::boolean<&O::deterministic>("deterministic", "the same bits in each run. On a device: only deterministic operators. Where \"auto\" joins two engines across hosts: reductions in rank order. Other runs reduce so anyway: one engine, stages with tied embeddings, groups spread over the hosts in different patterns"),
      K::boolean<&O::tf32>("tf32", "fp32 matrix products and convolutions round their inputs to TF32, on GPUs that have it: faster, about three decimal digits"),
      K::boolean<&O::cudnn_benchmark>("cudnn_benchmark", "cuDNN times its algorithms for each new shape and takes the fastest, on GPUs"),
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
      K::choice<&O::cut_gradients>("cut_gradients", "when zero_stage 2 and 3 cut the gradients of a step of several microbatches: whole until the last is in, or after each, which takes less memory and reduces more often"),
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
      K::integer<&O::every_steps>("every_steps", ranges::kCountOrOff, "a checkpoint after so many steps; 0: never"),
      K::number<&O::every_minutes>("every_minutes", ranges::kNonNegative, "a checkpoint after so many minutes; 0: never"),
      K::integer<&O::keep>("keep", ranges::kPositive, "how many checkpoints to keep, the newest"),
      K::integer<&O::keep_best>("keep_best", ranges::kCountOrOff, "how many to keep besides, the best by train.best_metric, or by the held-out loss where that is none; taken after evaluations; 0: none"),
      K::text<&O::folder>("folder", "where checkpoints lie, in a folder named as the run: a path, relative to the current folder, or a URL, as s3://bucket/runs; none: in the run's folder"),
      K::text<&O::mirror>("mirror", "an object store that gets a copy of each checkpoint, as s3://bucket/runs; a run whose folder or checkpoints are not there goes on from its copies; none: no copies"),
      K::text<&O::key>("key", "encrypts checkpoints and models at rest with the key of 64 hexadecimal digits in env:NAME or file:/PATH; none: they are plain"),
      K::integer<&O::staging_bytes>("staging_bytes", {0, std::int64_t{1} << 50}, "the most bytes that a rank copies for a checkpoint; training waits while the rest is written; 0: all, and training waits for the copy only"),
      K::seconds<&O::timeout_seconds>("timeout_seconds", "writing files: the model, dumps, or a checkpoint"),
  };
}

std::vector<Key> data_cache_keys() {
  using O = DataCacheOptions;
  using K = KeysOf<O>;
  return {
      K::text<&O::folder>("cache", "a folder of this host that keeps what is read of data in object stores, shared by its ranks; other files in it are left alone; none: they are read again each epoch"),
      K::integer<&O::bytes>("cache_bytes", {std::int64_t{1} << 24, std::int64_t{1} << 50}, "about how many bytes `cache` keeps"),
  };
}

std::vector<Key> storage_keys() {
  using O = StorageOptions;
  using K = KeysOf<O>;
  return {
      K::number<&O::retry_seconds>("retry_seconds", ranges::kNonNegative, "a request to an object store that fails is made again for so long, with growing pauses; other ranks wait as much longer for each other; 0: it fails at once"),
  };
}

std::vector<Key> elastic_keys() {
  using O = ElasticOptions;
  using K = KeysOf<O>;
  return {
      K::integer<&O::max_restarts>("max_restarts", ranges::kCountOrOff, "how often our launcher starts the run again, from its newest checkpoint, after a rank or a host has died; 0: never"),
      K::integer<&O::min_data>("min_data", ranges::kCountOrOff, "the fewest data ranks that a run may go on with, with the same global batch: a restart leaves out hosts that do not come back, and parallel.data is the most; 0: it needs all of its ranks"),
  };
}

std::vector<Key> security_keys() {
  using O = SecurityOptions;
  using K = KeysOf<O>;
  return {
      K::boolean<&O::tls>("tls", "processes of kind = \"server\" encrypt what passes between them, and refuse a peer without a certificate of the authority's"),
      K::text<&O::certificate>("certificate", "PEM file with this host's certificate, which names its address"),
      K::text<&O::key>("key", "PEM file with its private key, without a passphrase"),
      K::text<&O::authority>("authority", "PEM file with the certificate of the authority that has signed all of them"),
  };
}

std::vector<Key> observe_keys() {
  using O = ObserveOptions;
  using K = KeysOf<O>;
  return {
      K::integers<&O::trace_steps>("trace_steps", ranges::kPositive, "[first, last] step of a Chrome/Perfetto trace"),
      K::integer<&O::prometheus_port>("prometheus_port", {0, 65535}, "serves /metrics; 0: off"),
      K::text<&O::prometheus_address>("prometheus_address", "the IPv4 address that /metrics is served at: this machine alone; 0.0.0.0: all of its interfaces"),
      K::boolean<&O::tensorboard>("tensorboard", "write TensorBoard event files"),
  };
}

std::vector<Key> debug_keys() {
  using O = DebugOptions;
  using K = KeysOf<O>;
  return {
      K::integers<&O::dump_steps>("dump_steps", ranges::kPositive, "writes <run>/dump/step-K/{batch,parameters,gradients}.safetensors (step 1 is the first)"),
      K::boolean<&O::ledger>("ledger", "each rank records the samples behind its updates in <run>/ledger/rank-N.jsonl"),
      K::integer<&O::compare_replicas_every_steps>("compare_replicas_every_steps", ranges::kCountOrOff, "compares the parameters of data replicas bit by bit, and ends the run where one has come apart; 0: never"),
      K::integers<&O::slow_workers>("slow_workers", ranges::kCountOrOff, "workers of kind = \"server\", counted from 0, that are made slow: to try what waits for them"),
      K::number<&O::slow_times>("slow_times", NumberRange{1, 1e6}, "how many times as long as it takes these wait over a pass, the pass itself included; 1: as long as it takes"),
      K::number<&O::sample_seconds>("sample_seconds", NumberRange{0, 1e6}, "each rank waits so long for each sample of a pass, before the pass: to try slower machines. Workers of servers may each have another; 0: it does not wait"),
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

constexpr auto kAdapter = [](void* document) -> AdapterOptions& {
  return recipe_at(document).model.adapter;
};
constexpr auto kCompress = [](void* document) -> Chosen<CompressKind>& {
  return recipe_at(document).compress;
};
constexpr auto kSync = [](void* document) -> Chosen<SyncKind>& { return recipe_at(document).sync; };

std::vector<Section> sections() {
  std::vector<Key> optimizer = optimizer_keys();
  optimizer.insert(optimizer.begin(), kind_key<kOptimizer>("the optimiser"));
  std::vector<Key> model = initial_value_keys();
  const Key loss = kind_key<kLoss>(
      "of class indices, of answers (0 or 1), of values, an expression of the recipe, or none: the "
      "model returns its own",
      "loss");
  model.insert(model.begin(),
               {kind_key<kModel>("which model; picks the keys below").required(), loss});
  std::vector<Key> data = data_cache_keys();
  data.insert(
      data.begin(),
      kind_key<kData>("text files, conversations, token shards, tables, images, or random numbers")
          .required());
  return {
      {"", top_keys(), [](void* document) { return document; }},
      {"model", model, [](void* document) -> void* { return &kModel(document).from; },
       [](void* document) -> Options& { return kModel(document).options(); }},
      {"loss",
       {},
       nullptr,
       [](void* document) -> Options& { return kLoss(document).options(); },
       OtherKinds::kRefused,
       KindChoice{std::get<KindSpec>(loss.spec), "model", loss.name}},
      {"adapter",
       {kind_key<kAdapter>("what is trained beside a model whose own parameters are all frozen")},
       nullptr,
       [](void* document) -> Options& { return kAdapter(document).options(); },
       OtherKinds::kUnused},
      {"data", data, section_at<&Recipe::data_cache>,
       [](void* document) -> Options& { return kData(document).options(); }, OtherKinds::kUnused},
      {"train", train_keys(), section_at<&Recipe::train>},
      {"optimizer", optimizer, section_at<&Recipe::optimizer>,
       [](void* document) -> Options& { return kOptimizer(document).options(); },
       OtherKinds::kUnused},
      {.name = "parallel",
       .keys = parallel_keys(),
       .at = section_at<&Recipe::parallel>,
       .retired = {{"offload", "none"}}},
      {"comm", comm_keys(), section_at<&Recipe::comm>},
      {"sync",
       {kind_key<kSync>("how the replicas of the model stay together")},
       nullptr,
       [](void* document) -> Options& { return kSync(document).options(); },
       OtherKinds::kUnused},
      {"compress",
       {kind_key<kCompress>(
           "what gradients, what workers push, or the changes of islands become on the wire")},
       nullptr,
       [](void* document) -> Options& { return kCompress(document).options(); },
       OtherKinds::kUnused},
      {"checkpoint", checkpoint_keys(), section_at<&Recipe::checkpoint>},
      {"storage", storage_keys(), section_at<&Recipe::storage>},
      {"elastic", elastic_keys(), section_at<&Recipe::elastic>},
      {"security", security_keys(), section_at<&Recipe::security>},
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
