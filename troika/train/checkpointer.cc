#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/checkpoint/find_newest.h>
#include <troika/checkpoint/replicated_read.h>
#include <troika/observe/log.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/checkpointer.h>
#include <troika/train/run_files.h>
#include <troika/train/run_folder.h>

#include <algorithm>
#include <random>
#include <utility>

namespace troika {
namespace {

std::string name_of_checkpoint(std::int64_t step) {
  return "the checkpoint of step " + std::to_string(step);
}

// Rank 0 draws it; no two starts of a run have the same.
std::string attempt_of(const Job& job) {
  std::random_device random;
  const std::uint64_t own = std::uint64_t{random()} << 32U | random();
  return job.gather(hex(own), "attempt").front().substr(0, 8);
}

CheckpointReaders readers_of(const Job& job) {
  return {job.rank(), job.size(),
          [&job](const std::string& text) {
            job.world().barrier({"checkpoint read", job.storage_deadline()}).wait();
            return job.gather(text, "checkpoint");
          },
          [&job](int rank) {
            return "rank " + std::to_string(rank) + " on host " +
                   job.members()[static_cast<std::size_t>(rank)].host;
          }};
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

}  // namespace

Checkpointer::Checkpointer(const Recipe& recipe, const Job& job, Metadata provenance,
                           const BestCheckpoints& best)
    : recipe_(recipe),
      job_(job),
      provenance_(std::move(provenance)),
      best_(best),
      run_(run_folder(recipe)),
      folder_(checkpoints_of(recipe)),
      attempt_(attempt_of(job)),
      writer_(folder_.key()),
      mirror_(job.rank() == 0 ? CheckpointMirror::of(recipe) : std::nullopt) {
  check_is_writable(recipe, folder_, job);
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
  const auto tell = [&](const std::string& problem) {
    if (problem.empty() || job_.rank() != 0) return;
    log_warning(name_of_checkpoint(step_) + " is not there: " + problem);
  };
  const bool due = is_due(step, notes);
  if (writer_.is_writing() && (notes.checkpoint_done || due)) tell(commit());
  if (!due) return;
  tell(join_commit());
  const std::int64_t most = recipe_.checkpoint.staging_bytes;
  begin(step, state(), most > 0 ? static_cast<std::uint64_t>(most) : StateWriter::kCopyAll);
}

void Checkpointer::begin(std::int64_t step, const StateDict& state, std::uint64_t most_copied) {
  if (job_.rank() == 0) {
    std::error_code ignored;
    std::filesystem::remove(checkpoint_request_path(run_), ignored);
  }
  step_ = step;
  numbers_ = state.numbers();
  writer_.begin(state, folder_.step_folder(step),
                shard_file_name(job_.rank(), job_.size(), attempt_), most_copied);
  staging_bytes_ = std::max(staging_bytes_, writer_.staging_bytes());
  last_ = Clock::now();
}

Manifest Checkpointer::manifest_of(std::span<const ShardReport> reports) const {
  Manifest manifest;
  manifest.step = step_;
  manifest.numbers = numbers_;
  manifest.recipe = to_toml(recipe_);
  manifest.provenance = provenance_;
  for (const ShardReport& report : reports) {
    manifest.tensors.insert(report.tensors.begin(), report.tensors.end());
    if (!report.shard.file.empty()) manifest.shards.push_back(report.shard);
  }
  return manifest;
}

std::string Checkpointer::commit() {
  const ShardReport own = writer_.wait();
  std::vector<ShardReport> reports;
  std::vector<std::string> problems;
  for (const std::string& text : job_.gather(format_report(own), "files of a checkpoint")) {
    reports.push_back(parse_report(text, "a rank's report"));
    problems.push_back(reports.back().error);
  }
  if (std::string problem = first_problem(readers_of(job_), problems); !problem.empty())
    return problem;
  if (job_.rank() != 0) return "";
  std::string before = join_commit();
  commit_ = std::jthread([this, manifest = manifest_of(reports)] {
    try {
      sync_metrics(run_);  // which go on from its step
      if (folder_.store()) upload_run_files(*folder_.store(), manifest.step, run_);
      folder_.commit(manifest);
      (void)folder_.read(manifest.step);  // what is there, before what was there is removed
    } catch (const std::exception& error) {
      commit_problem_ = error.what();
      return;
    }
    remove_old(manifest);
    copy_to_mirror(manifest.step);
  });
  return before;
}

// The new one is there, whatever becomes of the others.
void Checkpointer::remove_old(const Manifest& manifest) {
  try {
    folder_.remove_unnamed(manifest);
    folder_.remove_old(manifest.step, recipe_.checkpoint.keep, best_.steps_to_keep(folder_));
  } catch (const std::exception& error) {
    warnings_.push_back("older checkpoints stay: " + std::string(error.what()));
  }
}

void Checkpointer::copy_to_mirror(std::int64_t step) {
  if (!mirror_) return;
  try {
    mirror_->copy(folder_, step);
  } catch (const std::exception& error) {
    warnings_.push_back(name_of_checkpoint(step) + " is not in its mirror: " + error.what());
  }
}

std::string Checkpointer::join_commit() {
  if (commit_.joinable()) commit_.join();
  for (const std::string& warning : std::exchange(warnings_, {})) log_warning(warning);
  return std::exchange(commit_problem_, {});
}

void Checkpointer::finish() {
  if (writer_.is_writing()) {
    const std::string problem = commit();
    if (!problem.empty() && job_.rank() == 0) {
      log_warning(name_of_checkpoint(step_) + " is not there: " + problem);
    }
  }
  const std::string problem = join_commit();
  if (!problem.empty()) log_warning(name_of_checkpoint(step_) + " is not there: " + problem);
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
  std::string problem = commit();
  if (problem.empty()) problem = join_commit();
  problem = first_problem(readers_of(job_), job_.gather(problem, "last checkpoint"));
  if (problem.empty()) return;
  throw StorageError(name_of_checkpoint(step) + " cannot be written: " + problem,
                     "what was there before is kept");
}

void Checkpointer::mark_doubtful(std::int64_t step, const std::string& reason) {
  finish();
  if (job_.rank() != 0) return;
  try {
    for (const std::int64_t each : folder_.steps()) {
      if (each <= step) continue;
      Manifest manifest = folder_.read(each);
      manifest.provenance[kDoubt] = reason;
      folder_.commit(manifest);
    }
  } catch (const std::exception& error) {
    log_warning("a checkpoint in doubt is not marked: " + std::string(error.what()));
  }
}

ResumedState resume_newest(const CheckpointFolder& folder, const Job& job, Trainer& trainer,
                           TakeDoubtful doubtful) {
  const auto objection = [&](const Manifest& manifest) {
    const auto doubt = manifest.provenance.find(kDoubt);
    if (doubtful == TakeDoubtful::kYes || doubt == manifest.provenance.end()) return std::string();
    return "it is in doubt: " + doubt->second;
  };
  std::optional<StateReader> reader = open_newest(
      folder, readers_of(job),
      [](std::int64_t step, const std::string& problem) {
        log_warning(name_of_checkpoint(step) + " is not used: " + problem);
      },
      objection);
  if (!reader) {
    throw DataError("there is no checkpoint in " + folder.shown(),
                    "--overwrite starts the run again, from its first step");
  }
  StateDict state = trainer.places([&](const std::string& name) { return reader->has(name); });
  const ReplicatedRead read(job.world(), state.tensors(), job.storage_timeout());
  const std::optional<Failure> own = failure_in([&] {
    reader->check_wanted(state.tensors());
    read.read([&](const StateTensor& wanted) { reader->read(wanted); });
  });
  job.world().barrier({"checkpoint read", job.storage_deadline()}).wait();
  job.throw_on_all_ranks(own, "checkpoint");
  read.share();
  reader->set_numbers(state);
  trainer.restore(state);
  return {std::move(state), reader->manifest().provenance};
}

}  // namespace troika
