#include <torch/headeronly/version.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/base/version.h>
#include <troika/checkpoint/state_gatherer.h>
#include <troika/device/out_of_memory.h>
#include <troika/observe/log.h>
#include <troika/observe/machine.h>
#include <troika/observe/resources.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/resolve.h>
#include <troika/train/best_model.h>
#include <troika/train/dump.h>
#include <troika/train/gemm_rate.h>
#include <troika/train/job.h>
#include <troika/train/metric_reporter.h>
#include <troika/train/precision.h>
#include <troika/train/run.h>
#include <troika/train/run_folder.h>
#include <troika/train/saved_model.h>
#include <troika/train/stop_signals.h>
#include <troika/train/summary.h>
#include <troika/train/tensor_memory.h>
#include <troika/train/trainer.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>

namespace troika {
namespace {

bool contains(const std::vector<std::int64_t>& steps, std::int64_t step) {
  return std::ranges::find(steps, step) != steps.end();
}

void log_claim(Claim claim, const std::string& folder) {
  if (claim == Claim::kOverwritten) log_info("overwriting the run in " + folder);
  if (claim == Claim::kFinished) {
    log_info(folder + " is finished already; --overwrite trains it again");
  }
}

// Measured before the model takes memory: the matrices are no part of what the run needs.
double gemm_rate_of(const Recipe& recipe, at::Device device) {
  const double rate =
      measure_gemm_rate(device, numeric_types(recipe.train.precision).compute, Seconds(0.02));
  reset_peak(device);
  return rate;
}

// One rank's run after the rendezvous.
class TrainingRun {
 public:
  // Collective. What was in the run's folder is cleared away (`claim`, on rank 0) once every rank
  // has its model and its data.
  TrainingRun(const Recipe& recipe, Job& job, const RunOptions& options, const RunClaim* claim)
      : recipe_(recipe),
        job_(job),
        stop_on_signals_(options.stop_on_signals),
        best_(recipe.train),
        folder_(run_folder(recipe)),
        dataset_(open_dataset(recipe.data, traits_of(recipe.model).sample,
                              static_cast<std::uint64_t>(recipe.seed))),
        device_(job.context().device),
        gemm_rate_(gemm_rate_of(recipe, device_)),
        trainer_(recipe, dataset_, job.context()),
        whole_(job.world(), trainer_.model_specs(), trainer_.model_state().tensors(),
               job.storage_timeout()) {
    agree_on_data();
    if (recipe_.train.best_metric != kNoMetric && dataset_->samples(Split::kHeldOut) == 0) {
      throw DataError("train.best_metric needs held-out samples, and the data have none",
                      "set data.held_out_fraction higher");
    }
    if (!is_rank_zero()) return;
    reporter_.emplace(recipe_, options.progress);
    log_claim(claim->kind(), folder_.string());
    claim->clear(job_.size());
    write_recipe(recipe_, provenance());
    reporter_->open(recipe_, folder_);
    for (const std::string& warning : dataset_->warnings()) log_warning(warning);
    announce();
  }

  // The summary's JSON; nothing where a signal ended the run before its last step.
  std::optional<std::string> train() {
    trainer_.set_gradient_hook([this](const StepBatch& batch, double scale) {
      if (!contains(recipe_.debug.dump_steps, batch.step)) return;
      const std::vector<NamedTensor> gradients = whole_gradients(scale);
      if (is_rank_zero()) dump(batch, gradients);
      wait_for_files("gradients dumped");
    });
    std::optional<StopSignals> signals;
    if (stop_on_signals_) {
      signals.emplace();
      trainer_.set_stop_query([&] { return signals->received(); });
    }
    const auto started = Clock::now();
    StepMetrics last;
    while (trainer_.progress().step < recipe_.train.steps && !is_interrupted() &&
           !best_.gives_up()) {
      last = step();
    }
    finish_trace();
    if (is_interrupted()) {
      save_interrupted();
      return std::nullopt;
    }
    const Seconds seconds = Clock::now() - started;
    return finish(last, seconds);
  }

  // After train(), where a signal ended it; the same on every rank.
  [[nodiscard]] InterruptedError interruption() const {
    const int signal = trainer_.stop_signal();
    const std::string how = signal == SIGINT ? "" : " by SIG" + std::string(sigabbrev_np(signal));
    return InterruptedError("interrupted" + how + " after step " +
                                std::to_string(trainer_.progress().step) + " of " +
                                std::to_string(recipe_.train.steps),
                            "the model of that step is in " + model_path(folder_).string(), signal);
  }

 private:
  [[nodiscard]] bool is_rank_zero() const { return job_.rank() == 0; }

  [[nodiscard]] bool is_interrupted() const {
    return trainer_.stop_signal() != 0 && trainer_.progress().step < recipe_.train.steps;
  }

  // Checks that every rank reads the same data.
  void agree_on_data() const {
    const auto own = static_cast<std::int64_t>(content_hash(dataset_->fingerprint()));
    const auto all = job_.gather(own, {"data of all ranks", job_.start_deadline()});
    const auto other = std::ranges::find_if(all, [&](std::int64_t each) { return each != all[0]; });
    if (other == all.end()) return;
    const auto rank = static_cast<std::size_t>(other - all.begin());
    throw DataError("rank " + std::to_string(rank) + " on host " + job_.members()[rank].host +
                        " has other data than rank 0 on host " + job_.members()[0].host,
                    "every host needs the same files behind data.paths");
  }

  // The others wait while rank 0 writes, longer than they may in a step.
  void wait_for_files(std::string_view label) const {
    job_.world().barrier({label, job_.storage_deadline()}).wait();
  }

  StepMetrics step() {
    const std::int64_t next = trainer_.progress().step + 1;
    if (contains(recipe_.debug.dump_steps, next)) {
      const std::vector<NamedTensor> parameters = whole_model();
      if (is_rank_zero()) dump_tensors(dump_folder(folder_, next), "parameters", parameters);
      wait_for_files("parameters dumped");
    }
    const ResourceUse before = resource_use();
    StepMetrics metrics = trainer_.step();
    add_machine_figures(before, metrics);
    const std::int64_t every = recipe_.train.evaluate_every_steps;
    if (every > 0 && (next % every == 0 || next == recipe_.train.steps) && !is_interrupted()) {
      metrics.evaluation = trainer_.evaluate();
      if (best_.observe(next, metrics.evaluation)) save_best();
    }
    if (reporter_) reporter_->record(metrics);
    if (is_rank_zero() && !metrics.skipped.empty()) {
      log_warning("step " + std::to_string(next) + " was skipped: " + metrics.skipped);
    }
    if (job_.trace().complete() && !trace_written_) finish_trace();
    return metrics;
  }

  void add_machine_figures(const ResourceUse& before, StepMetrics& metrics) const {
    const ResourceUse after = resource_use();
    const double flops = trainer_.model().facts().flops_per_sample *
                         static_cast<double>(recipe_.train.global_batch_size) /
                         metrics.step_seconds;
    metrics.extras.push_back({"memory_bytes", static_cast<double>(after.memory_bytes)});
    metrics.extras.push_back({"cpu_utilisation", cpu_utilisation(before, after, cores_)});
    metrics.extras.push_back({"flops_per_second", flops});
    metrics.extras.push_back({"mfu", flops / (gemm_rate_ * job_.size())});
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

  std::string finish(const StepMetrics& last, Seconds seconds) {
    const std::int64_t kept = tensor_memory(device_).live_bytes;  // but for copies to save
    const std::vector<NamedTensor> model = whole_model();
    const std::string json = summary_json(recipe_, job_, trainer_, last, seconds,
                                          {kept, tensor_memory(device_).peak_bytes}, best_);
    if (is_rank_zero()) {
      save_parameters(model_path(folder_), model);
      reporter_->finish();
      write_file_atomically(summary_path(folder_), json + "\n");
      log_result(last, seconds);
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

  void save_best() {
    const std::vector<NamedTensor> model = whole_model();
    if (is_rank_zero()) save_parameters(best_model_path(folder_), model);
    wait_for_files("best model saved");
  }

  // No summary: the run is not finished.
  void save_interrupted() {
    const std::vector<NamedTensor> model = whole_model();
    if (is_rank_zero()) {
      reporter_->finish();
      log_info("stopping after step " + std::to_string(trainer_.progress().step) +
               ": saving the model");
      save_parameters(model_path(folder_), model);
    }
    wait_for_files("model of the last step saved");
  }

  void announce() const {
    const DatasetFacts facts = dataset_->facts();
    log_info(recipe_.name + ": " + format_count(parameter_count()) + " parameters, " +
             job_.mesh().describe() + ", engine " + std::string(job_.world().engine_name()));
    if (facts.documents > 0) {
      log_info("data: " + format_count(static_cast<double>(facts.documents)) + " documents, " +
               format_count(static_cast<double>(facts.tokens)) + " tokens, " +
               std::to_string(facts.held_out_documents) + " documents held out");
    }
  }

  [[nodiscard]] double parameter_count() const {
    double count = 0;
    for (const ParameterSpec& spec : trainer_.model().parameters()) {
      count += static_cast<double>(spec.global_count());
    }
    return count;
  }

  void log_result(const StepMetrics& last, Seconds seconds) const {
    std::string line = "done: loss " + format_fixed(last.loss, 4);
    if (last.evaluation) {
      const auto bits = last.evaluation->held_out_bits_per_byte;
      line += bits ? ", held-out " + format_fixed(*bits, 3) + " bits per byte"
                   : ", held-out loss " + format_fixed(last.evaluation->held_out_loss, 4);
      for (const NamedValue& each : last.evaluation->metrics) {
        line += ", " + each.name + " " + format_fixed(each.value, 4);
      }
    }
    const auto tokens = static_cast<double>(trainer_.progress().tokens);
    log_info(line + ", " + format_rate(tokens / seconds.count(), unit_of(recipe_)) + " over " +
             format_duration(seconds.count()));
    if (best_.gives_up()) {
      log_info("stopped early: " + plural(best_.evaluations_without_gain(), "evaluation") +
               " without a better " + best_.metric());
    }
    if (const auto& best = best_.best()) {
      log_info("best " + best_.metric() + " " + format_fixed(best->value, 4) + " after step " +
               std::to_string(best->step) + ": " + best_model_path(folder_).string());
    }
    log_info("run folder: " + folder_.string());
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
  BestModel best_;
  std::filesystem::path folder_;
  std::shared_ptr<const Dataset> dataset_;
  at::Device device_;
  double gemm_rate_;
  Trainer trainer_;
  StateGatherer whole_;
  std::optional<StateGatherer> whole_gradients_;  // made by the first dump
  std::optional<MetricReporter> reporter_;
  double cores_ = usable_cores();
  bool trace_written_ = false;
};

// One line, as the finished run has printed it.
std::string read_summary(const std::filesystem::path& run) {
  std::string line = read_file(summary_path(run), 1 << 24);
  if (line.ends_with('\n')) line.pop_back();
  return line;
}

}  // namespace

Recipe resolve_for_run(const Recipe& recipe, int ranks, const Origins& origins) {
  Recipe resolved = resolve_recipe(recipe, ranks, origins);
  resolved.train.precision = resolve_precision(recipe.train.precision);
  return resolved;
}

RunReport run_training(const Recipe& loaded, const World& world, const RunOptions& options) {
  count_tensor_memory(at::kCPU);
  const Recipe recipe = resolve_for_run(loaded, world.size);
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
    rendezvous.leave(Deadline::in(Seconds(recipe.comm.rendezvous_timeout_seconds)));
    return report;
  }
  Job job(std::move(rendezvous), recipe, flight_folder(folder));
  std::exception_ptr interruption;
  try {
    TrainingRun run(recipe, job, options, claim ? &*claim : nullptr);
    if (auto json = run.train()) {
      report.json = std::move(*json);
    } else {
      interruption = std::make_exception_ptr(run.interruption());
    }
  } catch (const Error& error) {
    job.abort(error);
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    const DeviceFacts facts = facts_of(job.context().device);
    job.abort(out_of_memory(error, facts));
    throw out_of_memory(error, facts);
  }
  job.leave();
  if (interruption) std::rethrow_exception(interruption);
  return report;
}

}  // namespace troika
