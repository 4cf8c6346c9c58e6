#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <troika/base/index_range.h>
#include <troika/comm/engines.h>
#include <troika/observe/machine.h>
#include <troika/param/drawing.h>
#include <troika/plan/memory_meta.h>
#include <troika/plan/memory_plan.h>
#include <troika/recipe/resolve.h>
#include <troika/schedule/generate.h>
#include <troika/sync/gradients/data_axis.h>
#include <troika/train/job.h>
#include <troika/train/precision.h>
#include <troika/train/tensor_memory.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace troika {
namespace {

// A step that the loader has ready, one that it makes ready, and the one that is computed.
constexpr std::int64_t kStepsInMemory = 3;

constexpr Seconds kNoWait(1);  // nothing is exchanged

// Where a model's steps are measured: on tensors without memory, or, where its operators know no
// such tensors, on real ones.
at::DeviceType measured_on(const Recipe& recipe) {
  return traits_of(recipe.model).has_meta_kernels ? at::kMeta : at::kCPU;
}

Group group_of(const std::string& axis, const std::vector<int>& ranks, int rank) {
  EngineOptions options;
  options.engine = "fake";
  const auto index = std::ranges::find(ranks, rank) - ranks.begin();
  return make_group(axis, ranks, static_cast<int>(index), options);
}

ModelPlacement placement_of(const Recipe& recipe, const GroupRanks& groups, int rank,
                            TensorPlace place) {
  ModelPlacement placement;
  placement.dry_run_of_device = place == TensorPlace::kDevice;
  placement.tensor = TensorAxis(group_of("tensor", groups.tensor, rank), kNoWait);
  placement.pipeline_rank =
      static_cast<int>(std::ranges::find(groups.pipeline, rank) - groups.pipeline.begin());
  placement.sharding = sharding_of(recipe, group_of("data shard", groups.shard, rank),
                                   group_of("data replica", groups.replicate, rank));
  placement.data = group_of("data", groups.data, rank);
  placement.timeout = kNoWait;
  return placement;
}

at::Tensor zeros_of(const TensorSpec& spec, std::int64_t samples) {
  std::vector<std::int64_t> shape = spec.shape;
  shape.insert(shape.begin(), samples);
  return at::zeros(shape, spec.dtype);  // a class that there is
}

Microbatch make_microbatch(const Recipe& recipe, std::int64_t samples, int index) {
  const SampleSpec sample = traits_of(recipe.model).sample;
  Microbatch microbatch;
  microbatch.index = index;
  microbatch.step = 1;
  microbatch.sample_ids = at::zeros({samples}, at::kLong);
  for (const TensorSpec& spec : sample.tensors) {
    if (spec.optional && !recipe.data.kind().gives(recipe.data.options(), spec)) continue;
    microbatch.tensors.add(spec.name, zeros_of(spec, samples));
  }
  return microbatch;
}

// Over all ranks, in a step or in an evaluation; 0 where none is made. Where any is, the last step
// has one.
std::int64_t samples_of(const Recipe& recipe, Mode mode) {
  if (mode == Mode::kTrain) return recipe.train.global_batch_size;
  if (recipe.train.evaluate_every_steps == 0) return 0;
  return std::min(
      evaluation_chunk(recipe),
      evaluation_samples(recipe, recipe.data.kind().max_held_out_samples(recipe.data.options())));
}

// More microbatches than these do not make the peak higher: without a pipeline each leaves nothing
// behind but claimed gradients, and a pipeline is full then. GPipe keeps them all to their backward
// passes.
std::int64_t enough_microbatches(const Recipe& recipe, Mode mode) {
  const ParallelOptions& parallel = recipe.parallel;
  if (parallel.pipeline == 1) return 3;
  if (mode == Mode::kTrain && keeps_all_activations(parallel.pipeline_schedule))
    return microbatches_per_step(recipe);
  return 4 * parallel.pipeline * std::max<std::int64_t>(parallel.virtual_stages, 2);
}

// Of a rank that has so many samples. Where ranks pass their units equally often (Trainer), some
// are empty: those that a rank is padded with.
std::vector<Microbatch> make_microbatches(const Recipe& recipe, const ModelFacts& facts, Mode mode,
                                          std::int64_t samples) {
  const std::int64_t size = recipe.train.micro_batch_size;
  const std::int64_t enough = enough_microbatches(recipe, mode);
  std::vector<Microbatch> microbatches;
  const auto add = [&](std::int64_t count) {
    microbatches.push_back(make_microbatch(recipe, count, static_cast<int>(microbatches.size())));
  };
  for (std::int64_t left = std::min(samples, size * enough); left > 0; left -= size) {
    add(std::min(left, size));
  }
  if (!exchanges_each_microbatch(recipe.parallel) && !facts.pads_microbatches) return microbatches;
  const std::int64_t padded_count =
      std::min<std::int64_t>(most_microbatches(recipe, samples_of(recipe, mode)), enough);
  while (std::ssize(microbatches) < padded_count) add(0);
  return microbatches;
}

// Forwards every hook to the data axis and samples the live bytes between units.
class PeakMemoryHooks final : public UnitHooks {
 public:
  PeakMemoryHooks(DataAxis& axis, at::DeviceType device) : axis_(axis), device_(device) {}

  void unshard(int unit, Direction direction) override {
    axis_.unshard(unit, direction);
    sample();
  }
  void reshard(int unit) override {
    sample();
    axis_.reshard(unit);
  }
  void prepare_gradients(int unit) override { axis_.prepare_gradients(unit); }
  void gradients_ready(int unit) override { axis_.gradients_ready(unit); }

  [[nodiscard]] std::int64_t peak() const { return peak_; }

 private:
  void sample() { peak_ = std::max(peak_, tensor_memory(device_).live_bytes); }

  DataAxis& axis_;
  at::DeviceType device_;
  std::int64_t peak_ = 0;
};

std::int64_t bytes_of(const Microbatch& microbatch) {
  auto bytes = static_cast<std::int64_t>(microbatch.sample_ids.nbytes());
  for (const NamedTensor& each : microbatch.tensors) {
    bytes += static_cast<std::int64_t>(each.tensor.nbytes());
  }
  return bytes;
}

// One rank, as Trainer makes it and takes it through its steps.
class DryRunRank {
 public:
  DryRunRank(const Recipe& recipe, int rank, TensorPlace place)
      : recipe_(recipe),
        rank_(rank),
        on_device_(place == TensorPlace::kDevice),
        device_(measured_on(recipe)),
        groups_(groups_of(recipe, rank)),
        before_(live_bytes()),
        model_(recipe, placement_of(recipe, groups_, rank, place)),
        tensor_(group_of("tensor", groups_.tensor, rank)),
        pipeline_group_(group_of("pipeline", groups_.pipeline, rank)) {
    plan_.place = place;
  }

  // Comes first. All that a plan has without any steps.
  const MemoryPlan& start() {
    count_start();
    // An optimiser itself has lists of chunks, too long for a model that no machine holds.
    const auto& optimizer = recipe_.optimizer.kind;
    for (std::size_t i = 0; i < optimizer.kind().state_names(optimizer.options()).size(); ++i) {
      state_.push_back(model_.arena().allocate_state());
    }
    plan_.optimizer = model_.arena().bytes(Storage::kState);
    return plan_;
  }

  const MemoryPlan& run() {
    DataAxis axis(model_.arena(),
                  PartialGroups{tensor_, group_of("tied stages", groups_.embedding, rank_)},
                  kNoWait);
    PipelineExecutor pipeline(model_.stages(), pipeline_group_, pipeline_options(recipe_, model_),
                              nullptr);
    step(pipeline, axis);
    evaluate(pipeline, axis);
    count_saving();
    return plan_;
  }

 private:
  [[nodiscard]] std::int64_t live_bytes() const { return tensor_memory(device_).live_bytes; }
  // Of the value that lasts, in bytes.
  [[nodiscard]] std::int64_t element_size(const ParameterSpec& spec) const {
    return static_cast<std::int64_t>(c10::elementSize(model_.arena().types().lasting(spec)));
  }

  // Initial values are drawn in fp64, some elements of a parameter at a time. There is a copy in
  // the masters' type where the values of others' pieces are drawn, too, and where the value is
  // narrower.
  void count_start() {
    const Arena& arena = model_.arena();
    plan_.values = arena.bytes(Storage::kWorkingWeights);
    plan_.masters = arena.bytes(Storage::kMasters);
    plan_.gradients = arena.bytes(Storage::kGradients);
    const bool draws_others = arena.sharding().stage > 0 && arena.keeps_working_weights();
    const auto master = static_cast<std::int64_t>(c10::elementSize(arena.types().master));
    std::int64_t most = 0;
    const auto draw = [&](const ParameterSpec& spec, std::int64_t count) {
      const bool is_copied = draws_others || element_size(spec) < master;
      const std::int64_t copy = is_copied ? master : 0;
      most = std::max(
          most, std::min(count, kDrawnAtOnce) * (static_cast<std::int64_t>(sizeof(double)) + copy));
    };
    if (draws_others) {
      for (const auto& parameter : arena.parameters()) {
        draw(parameter->spec(), parameter->spec().local_count());
      }
    } else {
      for (const LocalShard& shard : arena.local_shards()) {
        draw(arena.parameters()[shard.parameter]->spec(), shard.count);
      }
    }
    plan_.start = live_bytes() - before_;
    (on_device_ ? plan_.host_running : plan_.start) += most;
  }

  [[nodiscard]] std::int64_t samples(Mode mode) const {
    return even_split(samples_of(recipe_, mode), replica_of(mesh_of(recipe_), rank_),
                      replicas_of(recipe_))
        .count;
  }

  [[nodiscard]] std::int64_t bytes_of_samples(std::int64_t count) const {
    return count * bytes_of(make_microbatch(recipe_, 1, 0));
  }

  // What compression keeps, in copies of the masters.
  [[nodiscard]] std::int64_t compressed_copies() const {
    const SyncKind::Compresses what = recipe_.sync.kind().compresses();
    const bool is_used = what == SyncKind::Compresses::kGradients
                             ? groups_.data.size() > 1
                             : what != SyncKind::Compresses::kNothing;
    return is_used ? recipe_.compress.kind().copies() : 0;
  }

  // Twice: buffers are made in the first step.
  void step(PipelineExecutor& pipeline, DataAxis& axis) {
    plan_.batches = kStepsInMemory * bytes_of_samples(samples(Mode::kTrain));
    if (on_device_) plan_.host_running = std::max(plan_.host_running, plan_.batches);
    const std::int64_t without = live_bytes();
    const std::vector<Microbatch> microbatches =
        make_microbatches(recipe_, model_.facts(), Mode::kTrain, samples(Mode::kTrain));
    const std::int64_t inputs = live_bytes() - without;
    std::int64_t most_between = 0;
    reset_peak(device_);
    for (int pass = 0; pass < 2; ++pass) {
      PeakMemoryHooks hooks(axis, device_);
      axis.begin_step(static_cast<int>(microbatches.size()), kNoWait);
      const PipelineReport report = pipeline.train(microbatches, 1, hooks, kNoWait, {});
      plan_.peak_stage_activations = report.peak_stage_activations;
      axis.finish();
      axis.after_update();
      most_between = hooks.peak();
    }
    const std::int64_t lasting = live_bytes() - inputs;
    plan_.buffers = lasting - before_ - plan_.storages();
    const std::int64_t copies =
        compressed_copies() + recipe_.sync.kind().copies(recipe_.sync.options());
    plan_.buffers += copies * model_.arena().trained_master_bytes();
    plan_.activations = most_between - lasting - inputs;
    plan_.transient = tensor_memory(device_).peak_bytes - most_between;
    if (on_device_ && groups_.data.size() > 1) {
      plan_.host_staging = plan_.gradients + plan_.buffers;
    }
  }

  // All its samples are there at once.
  void evaluate(PipelineExecutor& pipeline, DataAxis& axis) {
    const std::int64_t without = live_bytes();
    const std::vector<Microbatch> microbatches =
        make_microbatches(recipe_, model_.facts(), Mode::kEvaluate, samples(Mode::kEvaluate));
    if (microbatches.empty()) return;
    const std::int64_t inputs = live_bytes() - without;
    reset_peak(device_);
    pipeline.evaluate(microbatches, axis, kNoWait);
    const std::int64_t evaluated = bytes_of_samples(samples(Mode::kEvaluate));
    plan_.evaluation =
        plan_.batches + evaluated + tensor_memory(device_).peak_bytes - inputs - before_;
    if (on_device_) {
      plan_.host_running = std::max(plan_.host_running, plan_.batches + evaluated);
    }
  }

  [[nodiscard]] bool dumps() const {
    return std::ranges::any_of(recipe_.debug.dump_steps,
                               [&](std::int64_t step) { return step <= recipe_.train.steps; });
  }

  // Bytes of values that a rank handles while the model is gathered.
  struct Gathered {
    // Copied to be sent, or put into whole tensors: one type after the other, the masters' and
    // that of narrower frozen values.
    std::int64_t own = 0, own_narrow = 0;
    std::int64_t stays = 0;  // on rank 0: held whole, and not copied where it lies on the host
    std::int64_t whole = 0;  // on rank 0: of the model, but for what stays
    // Gradients, which a dump has too: scaled in copies and copied again; and whole on rank 0.
    std::int64_t gradients = 0, whole_gradients = 0;

    [[nodiscard]] std::int64_t copied() const { return std::max(own, own_narrow); }
  };

  // StateGatherer: a rank gathers its shards, but not tied replicas; rank 0 has whole tensors
  // beside them, but for those that it holds whole.
  [[nodiscard]] Gathered count_gathered() const {
    const Arena& arena = model_.arena();
    const bool contributes = arena.sharding().stage > 0 ? arena.sharding().replicate.rank() == 0
                                                        : groups_.data.front() == rank_;
    const auto master = static_cast<std::int64_t>(c10::elementSize(arena.types().master));
    Gathered bytes;
    for (const LocalShard& shard : arena.local_shards()) {
      const ParameterSpec& spec = arena.parameters()[shard.parameter]->spec();
      if (!contributes || spec.tied_replica || !model_.is_saved(spec.name)) continue;
      const std::int64_t owned = spec.owned.value_or(spec.local_count());
      const auto count = std::clamp<std::int64_t>(owned - shard.begin, 0, shard.count);
      const std::int64_t size = element_size(spec);
      const bool stays = rank_ == 0 && count == spec.global_count();
      std::int64_t& copied = size < master ? bytes.own_narrow : bytes.own;
      (stays ? bytes.stays : copied) += count * size;
      if (!dumps() || spec.frozen || count == 0) continue;
      bytes.gradients += (shard.count + (stays ? 0 : count)) * size;
      if (stays) bytes.whole_gradients -= count * size;
    }
    if (rank_ != 0) return bytes;
    for (const ParameterSpec& spec : model_.parameters()) {
      if (!model_.is_saved(spec.name)) continue;
      const std::int64_t whole = spec.global_count() * element_size(spec);
      bytes.whole += whole;
      if (dumps() && !spec.frozen) bytes.whole_gradients += whole;
    }
    bytes.whole -= bytes.stays;
    return bytes;
  }

  void count_saving() {
    const Gathered bytes = count_gathered();
    const bool writes_dump = dumps() && rank_ == 0;
    const std::int64_t dumped = writes_dump ? bytes_of_samples(recipe_.train.global_batch_size) : 0;
    plan_.gathering = plan_.storages() + plan_.buffers + plan_.batches;
    plan_.writing = plan_.gathering;
    if (rank_ != 0) plan_.sent = bytes.copied();
    if (on_device_) {  // what is copied together there goes to the host, where rank 0 has it all
      plan_.host_saving = plan_.batches + dumped + bytes.copied() + bytes.stays + bytes.whole;
      plan_.gathering += std::max(bytes.copied(), bytes.gradients);
      return;
    }
    plan_.gathering +=
        std::max(bytes.copied() + bytes.whole, bytes.gradients + bytes.whole_gradients);
    plan_.writing += bytes.whole + dumped;
    if (writes_dump) plan_.writing += bytes.stays;
  }

  const Recipe& recipe_;
  int rank_;
  bool on_device_;
  at::DeviceType device_;  // that tensors are measured on
  GroupRanks groups_;
  std::int64_t before_;
  ModelPart model_;
  Group tensor_, pipeline_group_;
  std::vector<at::Tensor> state_;
  MemoryPlan plan_;
};

// Without their plans.
std::vector<RankKind> kinds_of(const Recipe& recipe) {
  const Mesh mesh = mesh_of(recipe);
  // Stages, place of the tensor axis, samples; and what rank 0 alone does.
  using KindKey = std::tuple<int, int, std::int64_t, std::int64_t, bool, bool>;
  std::map<KindKey, std::size_t> kind_of_key;
  std::vector<RankKind> kinds;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int data = replica_of(mesh, rank);
    const auto samples = [&](Mode mode) {
      return even_split(samples_of(recipe, mode), data, replicas_of(recipe)).count;
    };
    const KindKey key{mesh.coordinate(rank, Axis::kPipeline),
                      mesh.coordinate(rank, Axis::kTensor),
                      samples(Mode::kTrain),
                      samples(Mode::kEvaluate),
                      rank == 0,
                      data == 0};
    const auto [found, is_new] = kind_of_key.try_emplace(key, kinds.size());
    if (is_new) kinds.emplace_back();
    kinds[found->second].ranks.push_back(rank);
  }
  return kinds;
}

enum class Steps { kNone, kAll };

MemoryPlan dry_run(const Recipe& recipe, int rank, TensorPlace place, Steps steps) {
  const at::NoGradGuard no_autograd;
  count_tensor_memory(measured_on(recipe));
  std::optional<MetaTensors> meta;
  if (measured_on(recipe) == at::kMeta) meta.emplace();
  DryRunRank dry(recipe, rank, place);
  const MemoryPlan& start = dry.start();
  return steps == Steps::kNone ? start : dry.run();
}

}  // namespace

std::int64_t MemoryPlan::peak() const {
  return std::max({step(), start, evaluation, saving()});
}

std::int64_t MemoryPlan::host_bytes(bool is_staged) const {
  if (place == TensorPlace::kHost) return peak();
  return std::max(host_running + (is_staged ? host_staging : 0), host_saving);
}

MemoryPlan predict_memory(const Recipe& recipe, int rank, TensorPlace place) {
  return dry_run(recipe, rank, place, Steps::kAll);
}

ScopedRankThreads::ScopedRankThreads(int ranks_per_node) : before_(at::get_num_threads()) {
  if (std::getenv("OMP_NUM_THREADS")) return;  // which the ranks have as well
  at::set_num_threads(threads_of_rank(usable_cores(), ranks_per_node));
}

ScopedRankThreads::~ScopedRankThreads() {
  at::set_num_threads(before_);
}

std::vector<RankKind> predict_job(const Recipe& recipe, TensorPlace place,
                                  const ShouldContinue& should_continue) {
  std::vector<RankKind> kinds = kinds_of(recipe);
  if (should_continue) {
    // Takes a moment, where the steps may take seconds.
    for (RankKind& kind : kinds) {
      kind.plan = dry_run(recipe, kind.ranks.front(), place, Steps::kNone);
    }
    if (!should_continue(kinds)) return kinds;
  }
  for (RankKind& kind : kinds) {
    kind.plan = predict_memory(recipe, kind.ranks.front(), place);
    if (should_continue && !should_continue(kinds)) return kinds;
  }
  // Rank 0 has what one other rank has sent at a time.
  std::int64_t most = 0;
  for (const RankKind& kind : kinds) most = std::max(most, kind.plan.sent);
  MemoryPlan& first = kinds.front().plan;
  (place == TensorPlace::kDevice ? first.host_saving : first.gathering) += most;
  return kinds;
}

std::vector<RankKind> predict_ranks(const Recipe& recipe, int first, int count, TensorPlace place) {
  std::vector<RankKind> kinds = kinds_of(recipe);
  for (RankKind& kind : kinds) {
    std::erase_if(kind.ranks, [&](int rank) { return rank < first || rank >= first + count; });
  }
  std::erase_if(kinds, [](const RankKind& kind) { return kind.ranks.empty(); });
  for (RankKind& kind : kinds) kind.plan = predict_memory(recipe, kind.ranks.front(), place);
  return kinds;
}

}  // namespace troika
