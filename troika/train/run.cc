#include <torch/headeronly/version.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/base/version.h>
#include <troika/checkpoint/state_gatherer.h>
#include <troika/device/device_error.h>
#include <troika/observe/jsonl_sink.h>
#include <troika/observe/log.h>
#include <troika/observe/machine.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/timeouts.h>
#include <troika/session/host_position.h>
#include <troika/train/adapted_model.h>
#include <troika/train/best_checkpoints.h>
#include <troika/train/best_model.h>
#include <troika/train/checkpointer.h>
#include <troika/train/compared_dataset.h>
#include <troika/train/data_agreement.h>
#include <troika/train/dump.h>
#include <troika/train/gemm_rate.h>
#include <troika/train/host_ranks.h>
#include <troika/train/job.h>
#include <troika/train/ledger.h>
#include <troika/train/metric_reporter.h>
#include <troika/train/model_sources.h>
#include <troika/train/precision.h>
#include <troika/train/replica_comparison.h>
#include <troika/train/run.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_log.h>
#include <troika/train/run_tokenizer.h>
#include <troika/train/saved_model.h>
#include <troika/train/step_resources.h>
#include <troika/train/stop_signals.h>
#include <troika/train/summary.h>
#include <troika/train/tensor_memory.h>
#include <troika/train/trainer.h>
#include <troika/train/undefined_metrics.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>

namespace troika {
namespace {

TrainerContext context_of(const Job& job, const RunOptions& options) {
  TrainerContext context = job.context();
  context.make_sync = options.make_sync;
  context.optimizer = options.optimizer;
  return context;
}

std::shared_ptr<const Dataset> open_data(const Job& job, const Recipe& recipe,
                                         const RunOptions& options) {
  std::shared_ptr<const Dataset> dataset = open_data_of(job, recipe);
  if (options.on_data) options.on_data(dataset);
  return dataset;
}

// One rank's run after the rendezvous.
class TrainingRun {
 public:
  // Collective. What was in the run's folder is cleared away (`claim`, on rank 0) once every rank
  // has its model and its data.
  TrainingRun(const Recipe& recipe, Job& job, const RunOptions& options, Claim kind,
              const RunClaim* claim)
      : recipe_(recipe),
        job_(job),
        stop_on_signals_(options.stop_on_signals),
        may_change_(options.existing == Existing::kResume),
        doubt_of_workers_(options.doubt),
        best_(recipe.train),
        undefined_(recipe.train),
        best_checkpoints_(recipe),
        folder_(run_folder(recipe)),
        dataset_(open_data(job, recipe, options)),
        listing_(DataListing::of(*dataset_)),
        device_(job.context().device),
        gemm_rate_(gemm_rate_of_run(device_, numeric_types(recipe.train.precision).compute)),
        trainer_(recipe, dataset_, context_of(job, options)),
        resources_(device_, flops_of_step(), gemm_rate_ * job.size()),
        whole_(job.world(), trainer_.model_specs(), trainer_.model_state().tensors(),
               job.storage_timeout()),
        checkpointer_(recipe, job, manifest_provenance(), best_checkpoints_, claim) {
    agreement_.emplace(job_.session(), job_.start_patience(),
                       data_of_rank(dataset_, job_, recipe_.data.kind(), listing_->summary()));
    if (recipe_.debug.ledger) ledger_.emplace(folder_, job_.rank());
    if (recipe_.train.best_metric != kNoMetric && dataset_->samples(Split::kHeldOut) == 0) {
      throw DataError("train.best_metric needs held-out samples, and the data have none",
                      "set data.held_out_fraction higher");
    }
    const std::string carriers = carriers_text(job_, device_);
    const bool resumes = kind == Claim::kResumed;
    base_ = take_all_initial_values(recipe_.model, job_.session(), job_.storage_timeout(), trainer_,
                                    resumes ? TakeAdapters::kNo : TakeAdapters::kYes);
    if (!base_.empty()) checkpointer_.note(kBaseEntry, base_);
    if (resumes) resume();
    first_step_ = trainer_.progress().step;
    listing_.reset();  // of many files it is large
    if (!is_rank_zero()) return;
    reporter_.emplace(recipe_, options.progress);
    log_claim(kind, folder_.string());
    claim->clear(job_.size());
    write_recipe(recipe_, provenance());
    reporter_->open(recipe_, folder_, trainer_.progress().step);
    write_data_description(recipe_, folder_, dataset_->description());
    for (const std::string& warning : dataset_->warnings()) log_warning(warning);
    log_start(recipe_, job_, trainer_, *dataset_, carriers);
  }

  // The summary's JSON; nothing where a signal ended the run before its last step.
  std::optional<std::string> train() {
    try {
      return take_steps();
    } catch (const std::exception& error) {
      // The other ranks wait for this one in a step, not for its checkpoint.
      if (const auto* known = dynamic_cast<const Error*>(&error)) job_.abort(*known);
      checkpointer_.finish_before(error);
      throw;
    }
  }

  // After train(), where a signal ended it; the same on every rank.
  [[nodiscard]] std::exception_ptr interruption() const {
    return interruption_by(trainer_.notes().stop_signal,
                           "after step " + std::to_string(trainer_.progress().step) + " of " +
                               std::to_string(recipe_.train.steps));
  }

 private:
  [[nodiscard]] bool is_rank_zero() const { return job_.rank() == 0; }

  std::optional<std::string> take_steps() {
    std::optional<StopSignals> signals;
    if (stop_on_signals_) signals.emplace();
    trainer_.set_note_query([&] {
      return StepNotes{signals ? signals->received() : 0, checkpointer_.is_wanted(),
                       agreement_->is_hashed()};
    });
    started_ = Clock::now();
    StepMetrics last;
    while (trainer_.progress().step < recipe_.train.steps && !is_interrupted() &&
           !best_.gives_up()) {
      last = step_on_same_data();
    }
    finish_trace();
    checkpointer_.doubt(doubt(), best_);  // found since the last step
    if (is_interrupted()) {
      save_interrupted();
      trainer_.leave();
      return std::nullopt;
    }
    const Seconds seconds = trained();
    if (is_rank_zero()) agreement_->warn_if_open();
    if (last.step > 0) checkpointer_.take_at_end(last.step, [&] { return state(); });
    std::string summary = finish(last, seconds);
    trainer_.leave();
    return summary;
  }

  [[nodiscard]] bool is_interrupted() const {
    return trainer_.notes().stop_signal != 0 && trainer_.progress().step < recipe_.train.steps;
  }

  // Collective: goes on from the newest checkpoint.
  void resume() {
    const auto taken = may_change_ ? TakeDoubtful::kYes : TakeDoubtful::kNo;
    const auto [state, provenance] = resume_newest(checkpoints_of(recipe_), job_, trainer_, taken);
    const std::int64_t step = trainer_.progress().step;
    if (step > recipe_.train.steps) {
      throw UsageError("train.steps = " + std::to_string(recipe_.train.steps) +
                           ", and the newest checkpoint is of step " + std::to_string(step),
                       "write more steps");
    }
    job_.throw_on_all_ranks(failure_in([&] {
                              if (is_rank_zero()) check_base(provenance, base_, recipe_.model);
                            }),
                            "base");
    const std::string change = check_unchanged(provenance, *dataset_, *listing_, may_change_);
    best_.load(state);
    if (!may_change_ && checkpointer_.has_doubtful_best()) best_.forget_best();
    best_checkpoints_.load(state);
    seconds_before_ = Seconds(state.number("seconds"));
    if (!is_rank_zero()) return;
    if (!change.empty()) log_warning(change);
    log_info("going on from the checkpoint of step " + std::to_string(step) + " of " +
             std::to_string(recipe_.train.steps));
  }

  // The time of training, with that before the run was resumed.
  [[nodiscard]] Seconds trained() const {
    return seconds_before_ + Seconds(Clock::now() - started_);
  }

  // Collective.
  [[nodiscard]] StateDict state() {
    StateDict state = trainer_.state();
    best_.save(state);
    best_checkpoints_.save(state);
    state.set("seconds", trained().count());
    return state;
  }

  // The others wait while rank 0 writes, longer than they may in a step.
  void wait_for_files(std::string_view label) const {
    job_.world().barrier({label, job_.storage_deadline()}).wait();
  }

  GradientHook gradient_hook() {
    return [this](const StepBatch& batch, double scale) {
      if (ledger_) ledger_->begin(batch);
      if (std::ranges::count(recipe_.debug.dump_steps, batch.step) == 0) return;
      const std::vector<NamedTensor> gradients = whole_gradients(scale);
      if (is_rank_zero()) dump(batch, gradients);
      wait_for_files("gradients dumped");
    };
  }

  // What was saved since the start of this process is marked where the data of ranks turn out to
  // differ.
  StepMetrics step_on_same_data() {
    try {
      return step();
    } catch (const OtherDataError& error) {
      checkpointer_.doubt(doubt(error.what()), best_);
      throw;
    }
  }

  // `difference` is that of the ranks' data, where they differ.
  [[nodiscard]] DataDoubt doubt(const std::string& difference = "") const {
    if (doubt_of_workers_) return doubt_of_workers_();
    DataDoubt doubt;
    if (!difference.empty()) doubt = {.certain = first_step_ + 1, .reason = difference};
    if (agreement_->is_open()) doubt.possible = first_step_ + 1;
    return doubt;
  }

  StepMetrics step() {
    const std::int64_t next = trainer_.progress().step + 1;
    const bool dumps = std::ranges::count(recipe_.debug.dump_steps, next) > 0;
    trainer_.set_gradient_hook(dumps || ledger_ ? gradient_hook() : GradientHook());
    if (dumps) {
      trainer_.average_buffers();
      const std::vector<NamedTensor> parameters = whole_model();
      if (is_rank_zero()) dump_tensors(dump_folder(folder_, next), "parameters", parameters);
      wait_for_files("parameters dumped");
    }
    resources_.begin();
    StepMetrics metrics = trainer_.step();
    resources_.end(metrics);
    agreement_->after_step(trainer_.notes());
    checkpointer_.doubt(doubt(), best_);
    if (ledger_ && metrics.skipped.empty()) ledger_->commit();
    const std::int64_t comparison = recipe_.debug.compare_replicas_every_steps;
    if (comparison > 0 && next % comparison == 0) check_replicas(trainer_, job_, next);
    const std::int64_t every = recipe_.train.evaluate_every_steps;
    if (every > 0 && (next % every == 0 || next == recipe_.train.steps)) {
      metrics.evaluation = trainer_.evaluate();
      if (const auto distance = trainer_.consensus_distance()) {
        metrics.extras.push_back({"consensus_distance", *distance});
      }
      if (best_.observe(next, metrics.evaluation)) save_best();
      if (metrics.evaluation && is_rank_zero()) undefined_.warn(*metrics.evaluation);
    }
    StepNotes notes = trainer_.notes();
    if (best_checkpoints_.observe(metrics.evaluation)) notes.wants_checkpoint = true;
    resources_.add_time_outside(metrics);
    if (reporter_) reporter_->record(metrics);
    if (is_rank_zero() && !metrics.skipped.empty()) {
      log_warning("step " + std::to_string(next) + " was skipped: " + metrics.skipped);
    }
    if (job_.trace().complete() && !trace_written_) finish_trace();
    if (next < recipe_.train.steps && !is_interrupted()) {
      checkpointer_.after_step(next, notes, [&] { return state(); });
    }
    return metrics;
  }

  [[nodiscard]] double flops_of_step() const {
    return trainer_.model().facts().flops_per_sample *
           static_cast<double>(recipe_.train.global_batch_size);
  }

  void dump(const StepBatch& batch, std::span<const NamedTensor> gradients) const {
    const std::filesystem::path folder = dump_folder(folder_, batch.step);
    dump_tensors(folder, "gradients", gradients);
    dump_batch(folder, *dataset_, {batch.first_ordinal, recipe_.train.global_batch_size},
               batch.step);
  }

  // Each rank writes its trace; rank 0 joins those that it can see.
  void finish_trace() {
    if (recipe_.observe.trace_steps.empty() || trace_written_) return;
    trace_written_ = true;
    job_.trace().end();
    make_folders(folder_);
    job_.trace().write(trace_path(folder_, job_.rank()));
    wait_for_files("traces written");
    if (is_rank_zero()) merge_trace();
    wait_for_files("traces merged");
  }

  void merge_trace() const {
    std::vector<std::filesystem::path> parts;
    for (int rank = 0; rank < job_.size(); ++rank) parts.push_back(trace_path(folder_, rank));
    std::erase_if(parts, [](const auto& part) { return !std::filesystem::exists(part); });
    merge_traces(parts, folder_ / "trace.json");
    log_info("trace: " + (folder_ / "trace.json").string() + " (open it in ui.perfetto.dev)");
  }

  // Collective: the metrics of the last step. Where no step was left, rank 0 has them in its file.
  [[nodiscard]] std::string last_line(const StepMetrics& last) const {
    if (last.step > 0) return to_json_line(last);
    const std::string own = is_rank_zero() ? last_line_of(folder_ / "metrics.jsonl") : "";
    return job_.gather(own, "metrics of the last step").front();
  }

  // `last` is empty where no step was left.
  std::string finish(const StepMetrics& last, Seconds seconds) {
    const std::int64_t kept = tensor_memory(device_).live_bytes;  // but for copies to save
    const std::vector<NamedTensor> model = whole_model();
    TensorMemory tensors = tensor_memory(device_);
    tensors.live_bytes = kept;
    const std::string json = summary_json(recipe_, job_, trainer_, last_line(last), seconds,
                                          tensors, best_, checkpointer_.staging_bytes());
    if (is_rank_zero()) {
      save_model(model_path(folder_), model);
      reporter_->finish();
      write_file_atomically(summary_path(folder_), json + "\n");
      log_result(recipe_, trainer_, last, seconds, best_);
    }
    wait_for_files("end of the run");
    return json;
  }

  // Collective: parameters and buffers, whole on rank 0.
  [[nodiscard]] std::vector<NamedTensor> whole_model() {
    const StateDict state = trainer_.model_state();
    std::vector<at::Tensor> values;
    for (const StateTensor& each : state.tensors()) values.push_back(each.tensor);
    return whole_.gather(values, "parameters to rank 0");
  }

  [[nodiscard]] std::vector<NamedTensor> whole_gradients(double scale) {
    const StateDict gradients = trainer_.gradients();
    if (!whole_gradients_) {
      whole_gradients_.emplace(job_.world(), trainer_.gradient_specs(), gradients.tensors(),
                               job_.storage_timeout());
    }
    std::vector<at::Tensor> values;
    for (const StateTensor& each : gradients.tensors()) {
      values.push_back(each.shard.owned > 0 ? each.tensor * scale : each.tensor);
    }
    return whole_gradients_->gather(values, "gradients to rank 0");
  }

  void save_model(const std::filesystem::path& path, const std::vector<NamedTensor>& model) const {
    const std::optional<EncryptionKey> key = key_of(recipe_);
    if (!base_.empty()) {  // adapters alone: no other program takes them for a model
      save_parameters(path, model, key, {{kBaseEntry, base_}});
      return;
    }
    save_parameters(path, model, key);
    // It would not be encrypted.
    if (!key) recipe_.model.kind().save_beside(recipe_.model.options(), path, model);
  }

  void save_best() {
    const std::vector<NamedTensor> model = whole_model();
    if (is_rank_zero()) save_model(best_model_path(folder_), model);
    wait_for_files("best model saved");
  }

  // No summary: the run is not finished.
  void save_interrupted() {
    checkpointer_.take_last(trainer_.progress().step, state());
    const std::vector<NamedTensor> model = whole_model();
    if (is_rank_zero()) {
      reporter_->finish();
      log_info("stopping after step " + std::to_string(trainer_.progress().step) +
               ": a checkpoint is there; saving the model");
      save_model(model_path(folder_), model);
    }
    wait_for_files("model of the last step saved");
  }

  [[nodiscard]] Metadata manifest_provenance() const {
    Metadata provenance;
    for (const auto& [name, value] : this->provenance()) provenance[name] = value;
    provenance[kDataFilesEntry] = listing_->record();
    return provenance;
  }

  [[nodiscard]] Provenance provenance() const {
    const MachineFacts machine = machine_facts();
    return {{"troika", std::string(kVersion)},
            {"libtorch", TORCH_VERSION},
            {"data", dataset_->fingerprint()},
            {"machine", machine.cpu_model + ", " + std::to_string(machine.usable_cores) + " cores"},
            {"ranks", std::to_string(job_.size())}};
  }

  const Recipe& recipe_;
  Job& job_;
  bool stop_on_signals_;
  bool may_change_;
  std::function<DataDoubt()> doubt_of_workers_;
  BestModel best_;
  UndefinedMetrics undefined_;
  BestCheckpoints best_checkpoints_;
  std::filesystem::path folder_;
  std::shared_ptr<const Dataset> dataset_;
  std::optional<DataListing> listing_;  // until the first step
  at::Device device_;
  double gemm_rate_;
  Trainer trainer_;
  StepResources resources_;
  StateGatherer whole_;
  std::optional<StateGatherer> whole_gradients_;  // made by the first dump
  Checkpointer checkpointer_;
  std::optional<DataAgreement> agreement_;
  std::string base_;             // of adapters, on rank 0: its digest
  std::int64_t first_step_ = 0;  // done before this process began
  std::optional<Ledger> ledger_;
  Seconds seconds_before_{0};
  Clock::time_point started_ = Clock::now();
  std::optional<MetricReporter> reporter_;
  bool trace_written_ = false;
};

}  // namespace

RunReport run_training(const Recipe& loaded, const World& world, const RunOptions& options) {
  count_tensor_memory(at::kCPU);
  apply_store_options(loaded);
  const Recipe recipe = resolve_for_run(loaded, world.size, Origins(),
                                        host_position(world, Environment::of_process()));
  const std::filesystem::path folder = run_folder(recipe);
  Rendezvous rendezvous = join_rendezvous(world, recipe);
  std::optional<RunClaim> claim;
  const Claim kind = claim_on_all_ranks(rendezvous, recipe, options.existing, claim);
  RunReport report;
  if (kind == Claim::kFinished) {
    report.finished_before = true;
    if (world.rank == 0) {
      log_claim(kind, folder.string());
      report.json = read_summary(folder);
    }
    rendezvous.leave(Deadline::in(start_timeout(recipe)));
    return report;
  }
  Job job(std::move(rendezvous), recipe, flight_folder(folder));
  apply(numeric_settings(recipe.train), job.context().device);
  std::exception_ptr interruption;
  try {
    agree_on_model(recipe.model, job);
    TrainingRun run(recipe, job, options, kind, claim ? &*claim : nullptr);
    try {
      if (auto json = run.train()) {
        report.json = std::move(*json);
      } else {
        interruption = run.interruption();
      }
    } catch (const c10::Error& error) {  // while the tensors are still there
      if (const auto shown = device_error(error, job.context().device))
        throw_failure(failure_of(*shown));
      throw;
    }
  } catch (const Error& error) {
    job.abort(error);
    throw;
  } catch (const c10::Error& error) {
    const auto shown = device_error(error, job.context().device);
    if (!shown) throw;
    job.abort(*shown);
    throw_failure(failure_of(*shown));
  }
  job.leave();
  if (interruption) std::rethrow_exception(interruption);
  return report;
}

}  // namespace troika
