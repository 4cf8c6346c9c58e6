#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/text.h>
#include <troika/checkpoint/encryption.h>
#include <troika/observe/jsonl_sink.h>
#include <troika/observe/log.h>
#include <troika/observe/recorder.h>
#include <troika/observe/saved_error.h>
#include <troika/recipe/changes.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/timeouts.h>
#include <troika/train/checkpoint_mirror.h>
#include <troika/train/checkpointer.h>
#include <troika/train/claim.h>
#include <troika/train/run_files.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tokenizer.h>
#include <troika/train/saved_model.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

namespace troika {
namespace {

namespace fs = std::filesystem;

// Everything that a run writes; other files in the folder are left alone.
bool is_run_file(const std::string& name) {
  return name == "recipe.toml" || name == "data.json" || name == "metrics.jsonl" ||
         name == "dump" || name == "ledger" || name == "model.safetensors" ||
         name == "best.safetensors" || name == "best.safetensors.doubt" || name == "config.json" ||
         name == "checkpoints" || name == kRunTokenizer || name == ".checkpoint-now" ||
         name.starts_with(".tmp-") || name.starts_with("events.out.tfevents.") ||
         (name.starts_with("trace") && name.ends_with(".json"));
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_storage_error("remove", path, error.value());
}

constexpr const char* kHeldHint =
    "wait for it, stop it, or give this run another name with --set name=NAME";

// A run that failed before its first step, of missing data say, may be replaced.
bool has_taken_a_step(const fs::path& run) {
  std::error_code error;
  const auto bytes = fs::file_size(run / "metrics.jsonl", error);
  return !error && bytes > 0;
}

std::string described(const std::vector<KeyChange>& changes) {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> texts;
  for (const KeyChange& change : changes) texts.push_back(change.describe());
  const std::size_t shown = std::min(kShown, texts.size());
  std::string text = join(std::span(texts).first(shown), "; ");
  if (texts.size() > shown) text += "; and " + std::to_string(texts.size() - shown) + " more";
  return text;
}

// What is left to somebody who would go on with a changed run that has no checkpoint.
std::string without_checkpoint(const fs::path& run) {
  const bool has_model = fs::exists(summary_path(run));
  return "there is no checkpoint that --resume could go on from: give this run another name with "
         "--set name=NAME" +
         (has_model ? ", where it may begin with that model (--set model.from=" + run.string() + ")"
                    : std::string()) +
         ", or replace the run with --overwrite";
}

// Throws where the run cannot go on with what has changed. What is never taken is named first.
// Returns whether anything has that needs kResume.
bool check_changes(const fs::path& run, const Recipe& before, const Recipe& recipe,
                   Existing existing, bool has_checkpoint) {
  std::vector<KeyChange> never, asked;
  for (KeyChange& change : changes_between(before, recipe)) {
    if (change.may == MayChange::kNever)
      never.push_back(std::move(change));
    else if (change.may == MayChange::kOnRequest)
      asked.push_back(std::move(change));
  }
  const std::string holds = "'" + run.string() + "' holds a run of another recipe: ";
  if (!never.empty()) {
    throw UsageError(holds + described(never),
                     "give this one another name with --set name=NAME, or replace the run with "
                     "--overwrite (--resume goes on with other steps, batch or learning rate, not "
                     "with this)");
  }
  if (asked.empty() || existing == Existing::kResume) return !asked.empty();
  throw UsageError(holds + described(asked),
                   has_checkpoint
                       ? "--resume goes on with the new values; or give this one another "
                         "name with --set name=NAME, or replace the run with --overwrite"
                       : without_checkpoint(run));
}

// Everywhere that a run which replaces this one would remove them.
bool has_checkpoints(const fs::path& run, const CheckpointFolder& checkpoints) {
  if (!checkpoints.steps().empty()) return true;
  if (!CheckpointFolder(run / "checkpoints").steps().empty()) return true;
  if (!fs::exists(recipe_path(run))) return false;
  try {
    return !checkpoints_of(run).steps().empty();
  } catch (const UsageError&) {  // a recipe of another version, say, whose folder is not touched
    return false;
  }
}

[[noreturn]] void refuse_to_remove(const fs::path& folder, const std::string& why) {
  throw UsageError(
      shown_place(folder) + " holds checkpoints, and this run would remove them: " + why,
      "give this run another name with --set name=NAME, or replace what is there with "
      "--overwrite");
}

// The recipe of a run: where its file is gone, that of its newest checkpoint.
Recipe recipe_before(const fs::path& run, const CheckpointFolder& checkpoints) {
  if (fs::exists(recipe_path(run))) return recipe_of_run(run);
  const std::vector<std::int64_t> steps = checkpoints.steps();
  if (steps.empty()) refuse_to_remove(run / "checkpoints", "it has no recipe.toml");
  const fs::path newest = checkpoints.step_folder(steps.front());
  try {
    return parse_recipe(checkpoints.read(steps.front()).recipe, shown_place(newest)).recipe;
  } catch (const Error& error) {
    refuse_to_remove(checkpoints.path(),
                     "there is no recipe.toml, and the newest cannot be read (" +
                         std::string(error.what()) + ")");
  }
}

// Whether a run that has stopped early is to wait for a gain longer than it has.
bool waits_on(const fs::path& run, const TrainOptions& before, const TrainOptions& now) {
  const bool may_have_stopped = before.early_stop_patience > 0;
  if (!may_have_stopped || last_step_of(run / "metrics.jsonl") >= before.steps) return false;
  const bool waits_for_ever = now.early_stop_patience == 0;
  return waits_for_ever || now.early_stop_patience > before.early_stop_patience;
}

// What rank 0 tells the others of its claim in the store: a number, or why it could not.
constexpr const char* kClaimKey = "claim";
constexpr std::string_view kRefused = "refused: ";

}  // namespace

RunClaim::RunClaim(const Recipe& recipe, Existing existing)
    : run_(run_folder(recipe)), checkpoints_(checkpoints_of(recipe)) {
  const auto refuse_nothing = [&] {
    if (existing != Existing::kResume || fs::exists(recipe_path(run_)) ||
        has_checkpoints(run_, checkpoints_)) {
      return;
    }
    throw UsageError("there is no run in '" + run_.string() + "' to resume",
                     "leave --resume out to start it");
  };
  if (recipe.checkpoint.mirror == kNoMirror) refuse_nothing();
  make_folders(run_);
  lock_ = lock_folder(run_, kHeldHint);
  lock_checkpoints(recipe);
  if (existing != Existing::kOverwrite) restore(recipe, existing);
  refuse_nothing();
  kind_ = decide(recipe, existing);
  if (kind_ == Claim::kResumed) catch_up();
}

void RunClaim::lock_checkpoints(const Recipe& recipe) {
  if (recipe.checkpoint.folder == kRunFolder) return;
  checkpoint_lock_ =
      std::make_unique<WriteLock>(checkpoints_.path(), kHeldHint, LockedHere::kRefused);
}

void RunClaim::check_ownership() const {
  if (checkpoint_lock_) checkpoint_lock_->check_ownership();
}

bool RunClaim::is_lost() const {
  return checkpoint_lock_ && checkpoint_lock_->is_lost();
}

// A machine that is new has nothing of the run. One that has lost its checkpoints only has not
// finished, or is asked for more.
void RunClaim::restore(const Recipe& recipe, Existing existing) const {
  const bool has_run = fs::exists(recipe_path(run_));
  if (checkpoints_.store()) {
    if (!has_run) restore_run_files();
    return;
  }
  const std::optional<CheckpointMirror> mirror = CheckpointMirror::of(recipe);
  if (!mirror) return;
  const bool is_finished = fs::exists(summary_path(run_)) && existing != Existing::kResume;
  const bool lacks_checkpoints = has_taken_a_step(run_) && checkpoints_.steps().empty();
  if (!has_run || (lacks_checkpoints && !is_finished)) restore_from_mirror(*mirror, existing);
}

void RunClaim::restore_from_mirror(const CheckpointMirror& mirror, Existing existing) const {
  const bool has_run = fs::exists(recipe_path(run_));
  const auto is_of_this_run = [&](const Manifest& manifest) {
    if (!has_run) return true;
    const Recipe its = parse_recipe(manifest.recipe, "the recipe of a copy").recipe;
    const auto changes = changes_between(its, recipe_of_run(run_));
    return std::ranges::count(changes, MayChange::kNever, &KeyChange::may) == 0;
  };
  const TakeDoubtful doubtful =
      existing == Existing::kResume ? TakeDoubtful::kYes : TakeDoubtful::kNo;
  const auto step = mirror.restore(
      checkpoints_, is_of_this_run, doubtful, [](std::int64_t damaged, const auto& problem) {
        log_warning("the copy of the checkpoint of step " + std::to_string(damaged) +
                    " is not used: " + problem);
      });
  if (!step) return;
  log_info((has_run ? "the run's checkpoints are" : "the run's folder is") +
           std::string(" not there: the checkpoint of step ") + std::to_string(*step) +
           " is fetched from " + mirror.url());
}

// Those of a checkpoint that cannot be read are no better.
void RunClaim::restore_run_files() const {
  for (const std::int64_t step : checkpoints_.steps()) {
    try {
      (void)checkpoints_.read(step);
      download_run_files(*checkpoints_.store(), step, run_);
    } catch (const MissingKeyError&) {
      throw;  // it is not damaged
    } catch (const DataError& error) {
      log_warning("the run's files with the checkpoint of step " + std::to_string(step) +
                  " are not used: " + error.what());
      continue;
    }
    log_info("the run's files are fetched with the checkpoint of step " + std::to_string(step) +
             " from " + checkpoints_.store()->place());
    return;
  }
}

void RunClaim::catch_up() const {
  if (!checkpoints_.store()) return;
  if (last_step_of(run_ / "metrics.jsonl") < checkpoints_.steps().front()) restore_run_files();
}

Claim RunClaim::decide(const Recipe& recipe, Existing existing) const {
  const bool has_recipe = fs::exists(recipe_path(run_));
  if (existing == Existing::kOverwrite) return has_recipe ? Claim::kOverwritten : Claim::kFresh;
  const bool may_replace =
      !has_recipe || (existing == Existing::kRefuseOthers && !has_taken_a_step(run_));
  if (may_replace && !has_checkpoints(run_, checkpoints_)) return Claim::kFresh;
  const Recipe before = recipe_before(run_, checkpoints_);
  const bool has_checkpoint = !checkpoints_.steps().empty();
  const bool has_changed = check_changes(run_, before, recipe, existing, has_checkpoint);
  const bool is_longer = before.train.steps < recipe.train.steps;
  const bool goes_on =
      existing == Existing::kResume && (is_longer || waits_on(run_, before.train, recipe.train));
  // Where its model is gone, the last checkpoint has it.
  const bool has_model = fs::exists(model_path(run_)) || !has_checkpoint;
  if (fs::exists(summary_path(run_)) && has_model && !goes_on) return Claim::kFinished;
  if (has_checkpoint) return Claim::kResumed;
  if (existing == Existing::kResume) {
    throw UsageError("'" + run_.string() + "' holds no checkpoint to resume from",
                     has_changed
                         ? without_checkpoint(run_)
                         : "leave --resume out to start the run again, from its first step");
  }
  if (has_checkpoints(run_, checkpoints_)) {
    refuse_to_remove(run_ / "checkpoints", "they are not where checkpoint.folder says");
  }
  return Claim::kRestarted;
}

void RunClaim::clear(int ranks) const {
  // What says that a run is finished goes first, so that half a run never looks like a whole one.
  remove_tree(summary_path(run_));
  sync_folder(run_);
  if (kind_ != Claim::kResumed) remove_run();
  // Of ranks that the run before had, and this one has not; a rank alone has no recorder.
  for (int rank = ranks > 1 ? ranks : 0; fs::exists(recorder_path(flight_folder(run_), rank));
       ++rank) {
    remove_tree(recorder_path(flight_folder(run_), rank));
    remove_saved_error(flight_folder(run_), rank);
  }
}

void RunClaim::remove_run() const {
  // Those of the run before lie elsewhere where its recipe said so.
  try {
    if (fs::exists(recipe_path(run_))) checkpoints_of(run_).remove_all();
    // A recipe of another version, say. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const UsageError&) {
  }
  checkpoints_.remove_all();
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entries(run_, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (is_run_file(entries->path().filename().string())) files.push_back(entries->path());
  }
  if (error) throw_storage_error("read", run_, error.value());
  for (const fs::path& file : files) remove_tree(file);
}

Claim claim_on_all_ranks(Rendezvous& rendezvous, const Recipe& recipe, Existing existing,
                         std::optional<RunClaim>& claim) {
  const World& world = rendezvous.world();
  const auto tell_others = [&](const std::string& word) {
    if (world.size > 1) rendezvous.store().set(kClaimKey, word);
  };
  if (world.rank > 0) {
    // Rank 0 may have to see whether another host still writes there.
    const bool is_in_store = is_remote(recipe.checkpoint.folder);
    const Deadline deadline =
        Deadline::in(start_timeout(recipe) + (is_in_store ? StoreLease::kLongestTake : Seconds(0)));
    const std::string word = rendezvous.store().get(kClaimKey, deadline);
    if (!word.starts_with(kRefused)) return static_cast<Claim>(std::stoi(word));
    rendezvous.leave(deadline);
    throw PeerError("rank 0 cannot begin: " + word.substr(kRefused.size()));
  }
  try {
    claim.emplace(recipe, existing);
    tell_others(std::to_string(static_cast<int>(claim->kind())));
    return claim->kind();
  } catch (const Error& error) {
    tell_others(std::string(kRefused) + error.what());
    // Where this process keeps the store, the others are to read it first.
    try {
      rendezvous.leave(Deadline::in(failure_timing::kReadBeforeStoreGoes));
      // What matters is the first error. NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const RendezvousError&) {
    }
    throw;
  }
}

}  // namespace troika
