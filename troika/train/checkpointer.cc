#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/failure_timing.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/checkpoint/find_newest.h>
#include <troika/checkpoint/replicated_read.h>
#include <troika/observe/log.h>
#include <troika/recipe/recipe_file.h>
#include <troika/session/rank_name.h>
#include <troika/train/best_model.h>
#include <troika/train/checkpointer.h>
#include <troika/train/claim.h>
#include <troika/train/run_files.h>
#include <troika/train/run_folder.h>
#include <troika/train/saved_model.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

std::string name_of_checkpoint(std::int64_t step) {
  return "the checkpoint of step " + std::to_string(step);
}

CheckpointReaders readers_of(const Job& job) {
  return {job.rank(), job.size(),
          [&job](const std::string& text) {
            job.world().barrier({"checkpoint read", job.storage_deadline()}).wait();
            return job.gather(text, "checkpoint");
          },
          [&job](int rank) { return name_of_rank(rank, job.members()); }};
}

}  // namespace

CheckpointFolder checkpoints_of(const Recipe& recipe) {
  const std::string& folder = recipe.checkpoint.folder;
  return CheckpointFolder(
      folder == kRunFolder ? run_folder(recipe) / "checkpoints" : place_below(folder, recipe.name),
      key_of(recipe));
}

CheckpointFolder checkpoints_of(const std::filesystem::path& run) {
  if (is_remote(run.native())) return CheckpointFolder(run);
  std::error_code ignored;
  if (!std::filesystem::exists(recipe_path(run), ignored)) {
    const CheckpointFolder inside(run / "checkpoints"), itself(run);
    return inside.steps().empty() && !itself.steps().empty() ? itself : inside;
  }
  const Recipe recipe = recipe_of_run(run);
  // Where the run has been moved, what lies in its folder has come along.
  if (recipe.checkpoint.folder == kRunFolder) return CheckpointFolder(run / "checkpoints");
  return CheckpointFolder(place_below(recipe.checkpoint.folder, recipe.name));
}

std::filesystem::path checkpoint_request_path(const std::filesystem::path& run) {
  return run / ".checkpoint-now";
}

namespace {

// Collective. A folder in which nothing can be written is told of before the first step.
void check_is_writable(const Recipe& recipe, const CheckpointFolder& folder, const Job& job) {
  const bool takes_any = recipe.checkpoint.every_steps > 0 || recipe.checkpoint.every_minutes > 0;
  if (recipe.checkpoint.folder == kRunFolder || folder.store() || !takes_any) return;
  std::string problem;
  const std::filesystem::path file = folder.path() / (".rank-" + std::to_string(job.rank()));
  try {
    std::filesystem::create_directories(folder.path());
    write_file_atomically(file, "");
    std::filesystem::remove(file);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  problem = first_problem(readers_of(job), job.gather(problem, "checkpoint.folder"));
  if (problem.empty()) return;
  throw StorageError("checkpoint.folder: no checkpoint can be written: " + problem,
                     "name a folder in which this account may write");
}

void tell_unfrozen(const std::vector<std::string>& names) {
  if (names.empty()) return;
  const std::string others = names.size() == 1 ? ""
                                               : " to " + quote(names.back()) + " (" +
                                                     plural(std::ssize(names), "parameter") + ")";
  log_info("unfrozen since the checkpoint: " + quote(names.front()) + others +
           "; the optimiser begins with zero state there");
}

}  // namespace

Checkpointer::Checkpointer(const Recipe& recipe, const Job& job, Metadata provenance,
                           const BestCheckpoints& best, const RunClaim* claim)
    : recipe_(recipe),
      job_(job),
      provenance_(std::move(provenance)),
      best_(best),
      claim_(claim),
      run_(run_folder(recipe)),
      folder_(checkpoints_of(recipe)),
      mirror_(job.rank() == 0 ? CheckpointMirror::of(recipe) : std::nullopt),
      commit_(folder_, job.session(), settings()) {
  check_is_writable(recipe, folder_, job);
}

CommitSettings Checkpointer::settings() {
  CommitSettings settings;
  settings.keep = recipe_.checkpoint.keep;
  settings.timeout = job_.storage_timeout();
  settings.also_keep = [this] {
    std::vector<std::int64_t> steps = best_.steps_to_keep(folder_);
    if (const std::int64_t from = doubtful_from_; from != DataDoubt::kNever) {
      const std::vector<std::int64_t> all = folder_.steps();
      const auto newest = std::ranges::find_if(all, [&](std::int64_t each) { return each < from; });
      if (newest != all.end()) steps.push_back(*newest);
    }
    return steps;
  };
  settings.check = [this] { check_ownership(); };
  settings.before = [this](std::int64_t step) {
    sync_metrics(run_);  // which go on from its step
    if (folder_.store()) upload_run_files(*folder_.store(), step, run_);
  };
  settings.after = [this](std::int64_t step) {
    if (!mirror_) return;
    try {
      mirror_->copy(folder_, step);
    } catch (const std::exception& error) {
      throw StorageError(name_of_checkpoint(step) + " is not in its mirror: " + error.what());
    }
  };
  return settings;
}

void Checkpointer::check_ownership() const {
  if (claim_ != nullptr) claim_->check_ownership();
}

bool Checkpointer::is_wanted() const {
  if (job_.rank() != 0) return false;
  const double minutes = Seconds(Clock::now() - last_).count() / 60;
  if (recipe_.checkpoint.every_minutes > 0 && minutes >= recipe_.checkpoint.every_minutes) {
    return true;
  }
  std::error_code ignored;
  return std::filesystem::exists(checkpoint_request_path(run_), ignored);
}

bool Checkpointer::is_due(std::int64_t step, const StepNotes& notes) const {
  const std::int64_t every = recipe_.checkpoint.every_steps;
  return notes.wants_checkpoint || (every > 0 && step % every == 0);
}

void Checkpointer::after_step(std::int64_t step, const StepNotes& notes,
                              const std::function<StateDict()>& state) {
  log_problem(commit_.take_problem());
  // What follows could not be kept.
  if (claim_ != nullptr && claim_->is_lost()) claim_->check_ownership();
  if (!is_due(step, notes)) return;
  finish();
  const std::int64_t most = recipe_.checkpoint.staging_bytes;
  begin(step, state(), most > 0 ? static_cast<std::uint64_t>(most) : StateWriter::kCopyAll);
}

void Checkpointer::begin(std::int64_t step, const StateDict& state, std::uint64_t most_copied) {
  if (job_.rank() == 0) {
    std::error_code ignored;
    std::filesystem::remove(checkpoint_request_path(run_), ignored);
  }
  step_ = step;
  Manifest manifest;
  manifest.step = step;
  manifest.recipe = to_toml(recipe_);
  manifest.provenance = provenance_;
  commit_.begin(state, std::move(manifest), most_copied);
  staging_bytes_ = std::max(staging_bytes_, commit_.staging_bytes());
  last_ = Clock::now();
}

void Checkpointer::finish() {
  log_problem(commit_.finish());
}

void Checkpointer::log_problem(const std::string& problem) const {
  if (problem.empty() || job_.rank() != 0) return;
  log_warning(name_of_checkpoint(step_) + " is not there: " + problem);
}

void Checkpointer::finish_before(const std::exception& error) const {
  const bool may_miss_a_file = failure_of(error).secondary;
  commit_.wait_until_done(Deadline::in(
      may_miss_a_file ? std::min(failure_timing::kInterruptGrace, job_.storage_timeout())
                      : job_.storage_timeout()));
}

void Checkpointer::take_at_end(std::int64_t step, const std::function<StateDict()>& state) {
  finish();
  const CheckpointOptions& options = recipe_.checkpoint;
  const bool takes_any =
      options.every_steps > 0 || options.every_minutes > 0 || options.keep_best > 0;
  if (!takes_any || step_ == step) return;
  begin(step, state(), StateWriter::kCopyNothing);
  finish();
}

void Checkpointer::take_last(std::int64_t step, const StateDict& state) {
  finish();
  begin(step, state, StateWriter::kCopyNothing);
  std::string problem = commit_.finish();
  problem = first_problem(readers_of(job_), job_.gather(problem, "last checkpoint"));
  if (problem.empty()) return;
  throw StorageError(name_of_checkpoint(step) + " cannot be written: " + problem,
                     "what was there before is kept");
}

void Checkpointer::doubt(const DataDoubt& doubt, const BestModel& best) {
  const std::int64_t before = std::exchange(doubt_, doubt).certain;
  doubtful_from_ = std::min(doubt.possible, doubt.certain);
  if (doubt.certain < before) mark_doubtful(best);
}

void Checkpointer::mark_doubtful(const BestModel& best) {
  finish();
  provenance_[kDoubt] = doubt_.reason;  // of those that follow
  if (job_.rank() != 0) return;
  const std::int64_t first = doubt_.certain;
  const auto mark = [](const char* what, FunctionRef<void()> act) {
    try {
      act();
    } catch (const std::exception& error) {
      log_warning(std::string(what) + " in doubt is not marked: " + error.what());
    }
  };
  mark("a checkpoint", [&] {
    troika::mark_doubtful(folder_, first, doubt_.reason, [this] { check_ownership(); });
  });
  mark("a checkpoint in the mirror", [&] {
    if (mirror_) mirror_->mark_doubtful(first, doubt_.reason);
  });
  mark("the best model", [&] {
    if (best.best() && best.best()->step >= first) {
      troika::mark_doubtful(best_model_path(run_), doubt_.reason);
    }
  });
}

bool Checkpointer::has_doubtful_best() const {
  const std::string own = job_.rank() == 0 ? doubt_of(best_model_path(run_)) : "";
  const std::string doubt = job_.gather(own, "best model").front();
  if (doubt.empty()) return false;
  if (job_.rank() == 0) {
    log_warning("the best model is in doubt, and the next evaluation's takes its place: " + doubt);
  }
  return true;
}

ResumedState resume_newest(const CheckpointFolder& folder, const Job& job, Trainer& trainer,
                           TakeDoubtful doubtful) {
  std::optional<StateReader> reader = open_newest(
      folder, readers_of(job),
      [](std::int64_t step, const std::string& problem) {
        log_warning(name_of_checkpoint(step) + " is not used: " + problem);
      },
      [doubtful](const Manifest& manifest) { return objection_to(manifest, doubtful); });
  if (!reader) {
    throw DataError("there is no checkpoint in " + folder.shown(),
                    "--overwrite starts the run again, from its first step");
  }
  if (const std::string doubt = doubt_of(reader->manifest()); !doubt.empty() && job.rank() == 0) {
    log_warning(name_of_checkpoint(reader->manifest().step) + " is in doubt, and used: " + doubt);
  }
  const auto has = [&](const std::string& name) { return reader->has(name); };
  StateDict state = trainer.places(has);
  const ReplicatedRead read(job.world(), state.tensors(), job.storage_timeout(), reader->readers());
  const std::optional<Failure> own = failure_in([&] {
    reader->check_wanted(state.tensors());
    read.read([&](const StateTensor& wanted) { reader->read(wanted); });
  });
  job.world().barrier({"checkpoint read", job.storage_deadline()}).wait();
  job.throw_on_all_ranks(own, "checkpoint");
  read.share();
  reader->set_numbers(state);
  trainer.restore(state);
  if (job.rank() == 0) tell_unfrozen(trainer.unfrozen_since(has));
  return {std::move(state), reader->manifest().provenance};
}

}  // namespace troika
