#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/observe/machine.h>
#include <troika/observe/recorder.h>
#include <troika/observe/saved_error.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/claim.h>
#include <troika/train/run_folder.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <string>
#include <vector>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockFile = ".lock";

// What decides the numbers of a run; layout, engines and outputs may change between attempts.
Recipe numerics_of(Recipe recipe) {
  const Recipe defaults;
  recipe.runs_dir = defaults.runs_dir;
  recipe.parallel = defaults.parallel;
  recipe.comm = defaults.comm;
  recipe.checkpoint = defaults.checkpoint;
  recipe.observe = defaults.observe;
  recipe.debug = defaults.debug;
  return recipe;
}

// Everything that a run writes; other files in the folder are left alone.
bool is_run_file(const std::string& name) {
  return name == "recipe.toml" || name == "metrics.jsonl" || name == "dump" ||
         name == "model.safetensors" || name == "best.safetensors" || name == "checkpoints" ||
         name.starts_with(".tmp-") || name.starts_with("events.out.tfevents.") ||
         (name.starts_with("trace") && name.ends_with(".json"));
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_storage_error("remove", path, error.value());
}

UniqueFd lock_folder(const fs::path& run) {
  const fs::path path = run / kLockFile;
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file.valid()) throw_storage_error("write", path, errno);
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    const std::string holder = "process " + std::to_string(getpid()) + " on host " + host_name();
    if (ftruncate(file.get(), 0) != 0) throw_storage_error("write", path, errno);
    write_all(file.get(), std::as_bytes(std::span(holder)), path);
  } else if (errno == EWOULDBLOCK) {
    const std::string holder = read_file(path, 1 << 10);  // empty if it has come just now
    throw UsageError(
        shown_path(run) + " is being written by " + (holder.empty() ? "another process" : holder),
        "wait for it, stop it, or give this run another name with --set name=NAME");
  }
  return file;  // unlocked where the file system has no locks
}

// A run that failed before its first step, of missing data say, may be replaced.
bool has_taken_a_step(const fs::path& run) {
  std::error_code error;
  const auto bytes = fs::file_size(run / "metrics.jsonl", error);
  return !error && bytes > 0;
}

bool holds_same_recipe(const fs::path& run, const Recipe& recipe) {
  return to_toml(numerics_of(recipe_of_run(run))) == to_toml(numerics_of(recipe));
}

[[noreturn]] void refuse_other_recipe(const fs::path& run) {
  throw UsageError("'" + run.string() + "' holds a run of another recipe",
                   "give this one another name with --set name=NAME, or replace the run with "
                   "--overwrite (--resume goes on with a run of the same recipe)");
}

// What rank 0 tells the others of its claim in the store: a number, or why it could not.
constexpr const char* kClaimKey = "claim";
constexpr std::string_view kRefused = "refused: ";

}  // namespace

RunClaim::RunClaim(const Recipe& recipe, Existing existing) : run_(run_folder(recipe)) {
  if (existing == Existing::kResume && !fs::exists(recipe_path(run_))) {
    throw UsageError("there is no run in '" + run_.string() + "' to resume",
                     "leave --resume out to start it");
  }
  make_folders(run_);
  lock_ = lock_folder(run_);
  kind_ = fs::exists(recipe_path(run_)) ? decide(recipe, existing) : Claim::kFresh;
}

Claim RunClaim::decide(const Recipe& recipe, Existing existing) const {
  if (existing == Existing::kOverwrite) return Claim::kOverwritten;
  if (existing == Existing::kRefuseOthers && !has_taken_a_step(run_)) return Claim::kFresh;
  if (!holds_same_recipe(run_, recipe)) refuse_other_recipe(run_);
  if (fs::exists(summary_path(run_))) return Claim::kFinished;
  if (existing == Existing::kResume) {
    throw UsageError("'" + run_.string() + "' holds no checkpoint to resume from",
                     "--overwrite starts the run again, from its first step");
  }
  throw UsageError("'" + run_.string() + "' holds an unfinished run of this recipe",
                   "--overwrite starts it again, from its first step; --set name=NAME keeps it");
}

void RunClaim::clear(int ranks) const {
  // What says that the run is finished goes first, so that half a run never looks like a whole one.
  remove_tree(summary_path(run_));
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entries(run_, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (is_run_file(entries->path().filename().string())) files.push_back(entries->path());
  }
  if (error) throw_storage_error("read", run_, error.value());
  for (const fs::path& file : files) remove_tree(file);
  // Of ranks that the run before had, and this one has not; a rank alone has no recorder.
  for (int rank = ranks > 1 ? ranks : 0; fs::exists(recorder_path(flight_folder(run_), rank));
       ++rank) {
    remove_tree(recorder_path(flight_folder(run_), rank));
    remove_saved_error(flight_folder(run_), rank);
  }
}

Claim claim_on_all_ranks(Rendezvous& rendezvous, const Recipe& recipe, Existing existing,
                         std::optional<RunClaim>& claim) {
  const World& world = rendezvous.world();
  const auto tell_others = [&](const std::string& word) {
    if (world.size > 1) rendezvous.store().set(kClaimKey, word);
  };
  if (world.rank > 0) {
    const Deadline deadline = Deadline::in(Seconds(recipe.comm.rendezvous_timeout_seconds));
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
