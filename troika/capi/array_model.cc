#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/text.h>
#include <troika/capi/array_model.h>
#include <troika/device/device.h>
#include <troika/device/device_error.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/schedule.h>
#include <troika/recipe/recipe_file.h>
#include <troika/rendezvous/agreement.h>
#include <troika/session/call_agreement.h>
#include <troika/session/consensus.h>
#include <troika/session/source_agreement.h>
#include <troika/train/adapted_model.h>
#include <troika/train/initial_values.h>
#include <troika/train/model_sources.h>
#include <troika/train/precision.h>
#include <troika/train/run_folder.h>
#include <troika/train/saved_model.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Collective.
Recipe agreed(const Session& session, const ArrayModel::ReadRecipe& read) {
  constexpr std::string_view kLabel = "recipe of a model";
  Recipe recipe;
  run_on_all_ranks(
      session, [&] { recipe = read(); }, kLabel, NameRanks::kUnlessAll);
  if (const auto difference = find_difference(session, to_toml(recipe), kLabel)) {
    const auto& [text, ranks] = difference->theirs;
    throw UsageError("the recipe of the model differs: " +
                         first_difference(difference->of_rank_zero, text, "on rank 0",
                                          "on " + ranks_in_words(ranks, session.members())),
                     "create it from the same recipe on all ranks");
  }
  return recipe;
}

// Collective.
at::Device agreed_device(const Session& session, const TrainOptions& train) {
  std::optional<at::Device> device;
  run_on_all_ranks(
      session, [&] { device = session.device_for(train.device, "train.device"); },
      "device of a model", NameRanks::kUnlessAll);
  agree_on_kind(session, *device);
  apply(numeric_settings(train), *device);
  return *device;
}

// Runs `work`. Returns what device_error() says where the device fails in it, or is out of memory.
std::optional<Failure> device_failure_in(FunctionRef<void()> work, at::Device device) {
  try {
    work();
    return std::nullopt;
  } catch (const c10::Error& error) {
    const auto shown = device_error(error, device);
    if (!shown) throw;
    return failure_of(*shown);
  }
}

std::vector<Microbatch> on_the_device(std::vector<Microbatch> microbatches, at::Device device) {
  for (Microbatch& each : microbatches) each = to_device(std::move(each), device);
  return microbatches;
}

// Returns whether a unit or the loss refuses its input in the forward pass. The other ranks have
// heard nothing of this one then.
bool refuses_input(const Error& error) {
  return error.code() == ExitCode::kUsage || error.code() == ExitCode::kData;
}

at::Tensor numbers_from(std::int64_t first, std::int64_t count) {
  at::Tensor numbers = at::empty({count}, at::kLong);
  auto* const each = numbers.mutable_data_ptr<std::int64_t>();
  std::iota(each, each + count, first);
  return numbers;
}

[[noreturn]] void refuse_without_targets(const std::string& what, const StepSums& sums) {
  if (sums.valid == 0) {
    throw UsageError(what + " of no samples at all", "one rank at least has to have some");
  }
  throw UsageError(what + " of samples whose targets are all missing, or weigh nothing",
                   "a target that is NaN, a class that is -100, and a sample of weight 0 do not "
                   "count; one at least has to");
}

}  // namespace

ArrayModel::ArrayModel(Session session, const Recipe& recipe)
    : ArrayModel(std::move(session), [&] { return recipe; }) {}

ArrayModel::ArrayModel(Session session, const ReadRecipe& read, ModelTitle title)
    : session_(std::move(session)),
      title_(std::move(title)),
      recipe_((agree("the creation", std::nullopt), agreed(session_, read))),
      device_(agreed_device(session_, recipe_.train)),
      traits_(traits_of(recipe_.model)),
      inputs_(specs_of(traits_.sample, TensorRole::kInput)),
      targets_(specs_of(traits_.sample, TensorRole::kTarget)) {
  const at::NoGradGuard no_autograd;
  const auto make = [&] {
    if (const auto failure = device_failure_in([&] { make_part(); }, device_)) {
      throw_failure(*failure);
    }
  };
  run_on_all_ranks(session_, make, "a model", NameRanks::kUnlessAll);
  if (!recipe_.model.from.are_drawn()) {
    (void)take_initial_values(recipe_.model.from, session_, session_.timeout(), *part_);
    part_->arena().publish();
  }
  if (const InitialValueOptions pairs = adapter_values(recipe_.model); !pairs.are_drawn()) {
    (void)take_initial_values(pairs, session_, session_.timeout(), *part_, ValuesOf::kAdapters);
    part_->arena().publish();
  }
  agree_on_model();
  on_device([&] { make_step_parts(); });
}

void ArrayModel::agree_on_model() const {
  std::vector<SharedSource> sources = model_sources(recipe_.model);
  SharedSource& own = sources.emplace_back();
  own.title = "the initial value of the model";
  own.parts = [&] {
    std::vector<SourcePart> parts;
    for (const NamedTensor& each : values()) parts.push_back(tensor_part(each.name, each.tensor));
    return parts;
  };
  agree_on_sources(session_, sources, {"fingerprint of a model"});
}

void ArrayModel::make_part() {
  recipe_.parallel = ParallelOptions();
  recipe_.parallel.data = session_.size();
  ModelPlacement placement;
  placement.sharding.shard = session_.world();
  placement.data = session_.world();
  placement.timeout = session_.timeout();
  placement.device = device_;
  part_.emplace(recipe_, std::move(placement));
  stage_ = part_->stages().front();
  part_->arena().initialize(static_cast<std::uint64_t>(recipe_.seed));
  std::vector<NamedTensor> buffers;
  for (const ModelPart::Buffer& each : part_->buffers())
    buffers.push_back({each.name, each.tensor});
  buffers_.emplace(std::move(buffers), session_,
                   part_->facts().pads_microbatches ? ModelBuffers::Kept::kTogether
                                                    : ModelBuffers::Kept::kByEachRank);
}

void ArrayModel::make_step_parts() {
  Arena& arena = part_->arena();
  optimizer_ = make_optimizer(recipe_.optimizer, arena);
  executor_ = std::make_unique<PipelineExecutor>(part_->stages(), Group(),
                                                 PipelineOptions{.device = device_}, nullptr);
  norm_sums_ = std::make_unique<ParameterSums>(arena, SumGroups());
  AllReduceOptions options;
  options.all = {session_.world()};
  options.timeout = session_.timeout();
  sync_ = std::make_unique<AllReduceSync>(arena, std::move(options));
  engine_.emplace(StepEngine::Parts{*executor_, *sync_, arena, *norm_sums_});
  engine_->sum_on_device();
}

void ArrayModel::on_device(FunctionRef<void()> work) const {
  const auto failure = device_failure_in(work, device_);
  if (!failure) return;
  session_.abort(encode(*failure));
  throw_failure(*failure);
}

ArrayBatch ArrayModel::batch_of(const at::Tensor& inputs, const at::Tensor& targets) const {
  const std::string hint = "give them by name";
  return {inputs.size(0),
          {{only_spec(inputs_, "input", hint).name, inputs}},
          {{only_spec(targets_, "target", hint).name, targets}}};
}

void ArrayModel::agree(std::string_view call, const std::optional<Failure>& refusal,
                       const std::string& options) const {
  const std::string name = std::string(call) + " of model " + std::to_string(title_.number);
  const bool named = !title_.name.empty();
  const std::string remark = named ? quote(title_.name, 200) : title_.file;
  const std::string label = named ? name + " (" + title_.name + ")" : "";
  const auto in_words = [&] { return options; };
  agree_on_call(session_,
                {.name = name,
                 .remark = remark,
                 .label = label,
                 .options = options.empty() ? 0 : number_of_text(options),
                 .describe_options = in_words},
                refusal);
}

ArrayModel::LocalBatch ArrayModel::local_batch(std::string_view call, const MakeBatch& make) const {
  LocalBatch local;
  std::string optional;
  const std::optional<Failure> refusal = failure_in([&] {
    const ArrayBatch batch = make();
    Microbatch microbatch = microbatch_of(batch);
    optional = optional_arrays(traits_.sample, microbatch.tensors);
    if (batch.samples > 0) local.microbatches.push_back(std::move(microbatch));
  });
  agree(call, refusal, optional);
  // Units that communicate wait for those of this rank, too.
  if (local.microbatches.empty() && part_->facts().pads_microbatches) {
    local.microbatches.push_back(microbatch_without_samples());
  }
  return local;
}

Microbatch ArrayModel::microbatch_of(const ArrayBatch& batch) const {
  Microbatch microbatch;
  microbatch.tensors = sample_tensors(traits_.sample, batch, part_->arena().types().master);
  microbatch.valid = targets_that_count(traits_.sample, microbatch.tensors);
  // No other sample of the step has the same draws.
  const std::int64_t first = static_cast<std::int64_t>(session_.rank()) << kSampleIndexBits;
  microbatch.sample_ids = numbers_from(first, batch.samples);
  microbatch.step = steps_ + 1;
  return microbatch;
}

Microbatch ArrayModel::microbatch_without_samples() const {
  Microbatch microbatch;
  microbatch.tensors = without_samples(traits_.sample, part_->arena().types().master);
  microbatch.sample_ids = at::empty({0}, at::kLong);
  microbatch.step = steps_ + 1;
  return microbatch;
}

StepPart ArrayModel::part_of(const LocalBatch& local) {
  StepPart part;
  for (const Microbatch& each : local.microbatches) part.valid += each.samples();
  part.refused = local.refusal.has_value();
  return part;
}

double ArrayModel::step(const at::Tensor& inputs, const at::Tensor& targets) {
  return step([&] { return batch_of(inputs, targets); });
}

double ArrayModel::step(const MakeBatch& make) {
  const at::NoGradGuard no_autograd;
  LocalBatch local = local_batch("a step", make);
  const TrainOptions& train = recipe_.train;
  const auto targets =
      static_cast<double>(train.global_batch_size * part_->facts().targets_per_sample);
  const double loss_scale = loss_scale_for(train.precision, targets, 1);
  StepSums sums;
  on_device([&] {
    buffers_->remember();
    sums = differentiate(local, loss_scale);
    if (sums.refused || sums.weight == 0) {
      engine_->skip();
      buffers_->restore();
    }
  });
  if (sums.refused) {
    throw_on_all_ranks(session_, local.refusal, "refused arrays", NameRanks::kUnlessAll);
  }
  if (sums.weight == 0) refuse_without_targets("a step", sums);
  ++steps_;
  record_loss(sums.loss / sums.weight);
  on_device([&] {
    if (update(sums, loss_scale)) buffers_->average(part_of(local).valid);
  });
  return sums.loss / sums.weight;
}

StepSums ArrayModel::differentiate(LocalBatch& local, double loss_scale) {
  const auto pass = [&](std::span<const Microbatch> microbatches) {
    (void)engine_->differentiate({microbatches, loss_scale, part_of(local), session_.timeout(),
                                  /*starts_norm=*/true});
  };
  try {
    pass(on_the_device(local.microbatches, device_));
  } catch (const Error& error) {
    if (!refuses_input(error)) throw;
    local = {{}, failure_of(error)};
    pass({});
  }
  if (engine_->can_queue_update(*optimizer_)) {
    engine_->queue_update(*optimizer_,
                          {.learning_rate = learning_rate_of(steps_ + 1), .step = updates_ + 1},
                          recipe_.train.grad_clip);
  }
  return engine_->sums();
}

bool ArrayModel::update(const StepSums& sums, double loss_scale) {
  const double scale = 1 / (loss_scale * sums.weight);
  const double norm = engine_->gradient_norm() * scale;
  if (!sums.nonfinite_ranks.empty() || !std::isfinite(norm)) {
    engine_->skip();
    buffers_->restore();
    refuse_nonfinite(sums, norm);
    return false;
  }
  engine_->update(*optimizer_, {learning_rate(), scale * clip_factor(norm, recipe_.train.grad_clip),
                                ++updates_});
  return true;
}

void ArrayModel::refuse_nonfinite(const StepSums& sums, double norm) const {
  if (recipe_.train.on_nonfinite == OnNonFinite::kSkip) return;
  // A NaN may have a sign, which says nothing.
  std::string what = "the gradient norm is " + (std::isnan(norm) ? "nan" : std::to_string(norm));
  if (!sums.nonfinite_ranks.empty()) {
    what = "the loss is not finite on " + ranks_in_words(sums.nonfinite_ranks);
  }
  what += " at step " + std::to_string(steps_);
  if (!title_.name.empty()) {
    what += " of model " + std::to_string(title_.number) + " " + quote(title_.name, 200);
  }
  throw NonFiniteError(what,
                       "look for a NaN in the arrays, lower optimizer.lr, or set "
                       "train.on_nonfinite = \"skip\"");
}

void ArrayModel::record_loss(double loss) {
  losses_.push_back(loss);
  if (losses_.size() > kLossHistory) losses_.pop_front();
}

double ArrayModel::learning_rate() const {
  return learning_rate_of(std::max<std::int64_t>(steps_, 1));
}

double ArrayModel::learning_rate_of(std::int64_t step) const {
  return troika::learning_rate(recipe_.optimizer, recipe_.train.steps,
                               recipe_.train.global_batch_size, step);
}

double ArrayModel::loss(const at::Tensor& inputs, const at::Tensor& targets) {
  return loss([&] { return batch_of(inputs, targets); });
}

double ArrayModel::loss(const MakeBatch& make) {
  const at::NoGradGuard no_autograd;
  LocalBatch local = local_batch("a loss", make);
  StepSums sums;
  on_device([&] { sums = evaluate(local); });
  if (sums.refused) {
    throw_on_all_ranks(session_, local.refusal, "refused arrays", NameRanks::kUnlessAll);
  }
  if (sums.weight == 0) refuse_without_targets("a loss", sums);
  return sums.loss / sums.weight;
}

StepSums ArrayModel::evaluate(LocalBatch& local) {
  LossTerms loss;
  try {
    const std::vector<Microbatch> there = on_the_device(local.microbatches, device_);
    loss = executor_->evaluate(there, *sync_, session_.timeout()).loss;
  } catch (const Error& error) {
    if (!refuses_input(error)) throw;
    local = {{}, failure_of(error)};
  }
  StepPart own = part_of(local);
  own.loss = loss;
  return engine_->sum(own, "loss");
}

Microbatch ArrayModel::samples_to_predict(std::int64_t samples, const NamedArrays& inputs) const {
  if (outputs().empty()) {
    throw UsageError("the model keeps no outputs: kind = \"" + std::string(recipe_.model.name()) +
                         "\" computes its loss in parts",
                     "troika_model_loss() judges it");
  }
  Microbatch microbatch;
  microbatch.tensors =
      input_tensors(traits_.sample, samples, inputs, part_->arena().types().master);
  microbatch.sample_ids = numbers_from(0, samples);
  microbatch.valid = samples;
  return microbatch;
}

TensorMap ArrayModel::predict(std::int64_t samples, const NamedArrays& inputs) const {
  const at::NoGradGuard no_autograd;
  Microbatch microbatch = samples_to_predict(samples, inputs);
  Tensors found;
  on_device([&] { found = outputs_of(std::move(microbatch)); });
  TensorMap named;
  for (std::size_t i = 0; i < outputs().size(); ++i) named.add(outputs()[i].name, found.at(i));
  return named;
}

at::Tensor ArrayModel::predict(const at::Tensor& inputs) const {
  const std::string name = only_spec(inputs_, "input", "give them by name").name;
  return predict(inputs.size(0), {{name, inputs}})[0].to(inputs.scalar_type());
}

Tensors ArrayModel::outputs_of(Microbatch samples) const {
  Tensors outputs;
  if (samples.samples() == 0) {
    for (const TensorSpec& each : this->outputs()) {
      std::vector<std::int64_t> shape = each.shape;
      shape.insert(shape.begin(), 0);
      outputs.push_back(at::empty(shape, each.dtype));
    }
    return outputs;
  }
  const Microbatch there = to_device(std::move(samples), device_);
  // The outputs alone: a forward pass also computes the loss, of targets that are not there.
  std::optional<Tensors> found = stage_->differentiable(there);
  for (const at::Tensor& each : found ? *found : forward_pass(there)) {
    outputs.push_back(to_host(each));
  }
  return outputs;
}

Tensors ArrayModel::forward_pass(const Microbatch& samples) const {
  Saved saved;
  saved.mode = Mode::kEvaluate;
  saved.wants_predictions = true;
  saved.microbatch = samples;
  UnitHooks hooks;
  return stage_->forward({}, saved, hooks).tensors;
}

void ArrayModel::on_rank_0(std::string_view label, const std::function<void()>& work) const {
  throw_on_all_ranks(session_, session_.rank() == 0 ? failure_in(work) : std::nullopt, label,
                     NameRanks::kUnlessAll);
}

std::vector<NamedTensor> ArrayModel::values() const {
  std::vector<NamedTensor> values = buffers_->all();
  for (const auto& each : part_->arena().parameters()) {
    values.push_back({each->spec().name, each->master()});
  }
  return values;
}

void ArrayModel::save(const std::filesystem::path& path) const {
  save([&] { return path; });
}

void ArrayModel::load(const std::filesystem::path& path) {
  load([&] { return path; });
}

std::filesystem::path ArrayModel::agreed_path(std::string_view call, const FindPath& find) const {
  std::filesystem::path path;
  const std::optional<Failure> refusal = failure_in([&] { path = find(); });
  agree(call, refusal, refusal ? "" : "path " + quote(path.string()));
  return path;
}

void ArrayModel::save(const FindPath& find) const {
  const at::NoGradGuard no_autograd;
  const std::filesystem::path path = agreed_path("saving", find);
  on_rank_0("save", [&] {
    std::vector<NamedTensor> model = values();
    for (NamedTensor& each : model) each.tensor = to_host(each.tensor);
    const std::optional<EncryptionKey> key = key_of(recipe_);
    // Other programs would take no notice of adapters.
    const bool is_plain = !key && !part_->has_adapters();
    if (is_plain) recipe_.model.kind().save_beside(recipe_.model.options(), path, model);
    save_parameters(path, model, key);
  });
}

void ArrayModel::load(const FindPath& find) {
  const at::NoGradGuard no_autograd;
  const std::filesystem::path path = agreed_path("loading", find);
  on_rank_0("load", [&] {
    refuse_state(path);
    load_parameters(path, part_->arena(), buffers_->all());
  });
  share_loaded();
}

void ArrayModel::share_loaded() {
  Arena& arena = part_->arena();
  const auto broadcast = [&](const at::Tensor& values) {
    session_.world().broadcast(values, 0, session_.call("loaded parameters")).wait();
  };
  broadcast(arena.masters(0, arena.units()));
  const auto frozen = arena.local_shards().subspan(arena.trained_shards().size());
  for (const LocalShard& shard : frozen) broadcast(shard.master);
  buffers_->broadcast();
  arena.publish();
}

}  // namespace troika
