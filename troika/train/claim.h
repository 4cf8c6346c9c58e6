// Who may write to the folder of a run, and what a run that was there before means for the same
// command given again.
#pragma once

#include <troika/base/file.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/write_lock.h>
#include <troika/recipe/recipe.h>
#include <troika/rendezvous/rendezvous.h>

#include <filesystem>
#include <memory>
#include <optional>

namespace troika {

class CheckpointMirror;

// The treatment of a run that exists already.
enum class Existing { kRefuseOthers, kOverwrite, kResume };

enum class Claim {
  kFresh,        // nothing is there
  kOverwritten,  // a run is to be cleared away, as asked
  kFinished,     // this very recipe has been trained: nothing to do
  kResumed,      // it is to go on from a checkpoint; it may have been finished with fewer steps
  kRestarted,    // it was begun and ended before its first checkpoint
};

// The right to write to a run's folder, and to where its checkpoints lie, during its lifetime.
// <run>/.lock is locked (flock), and names host and process; so is the one beside
// checkpoints in another folder. A store has a mark (checkpoint/store_owner.h).
class RunClaim {
 public:
  // Decides, and changes only the lock. What is not there, and has copies in a mirror or
  // checkpoints in a store, is fetched: the run's files, and the newest checkpoint. Throws
  // UsageError when another recipe has the name, naming the keys that differ (recipe/changes.h:
  // kResume takes some of them), when it would remove checkpoints without kOverwrite, when there is
  // no checkpoint that kResume could go on from, or when another process holds a lock;
  // StorageError.
  RunClaim(const Recipe& recipe, Existing existing);

  [[nodiscard]] Claim kind() const { return kind_; }
  // Clears away the earlier run, once the new one of `ranks` ranks can begin; one that goes on is
  // kept. Removes only files that runs write, and no flight recorder of these ranks, which are
  // running.
  void clear(int ranks) const;
  // Throws StorageError where another run writes where this one's checkpoints lie, since a mark in
  // a store binds no one.
  void check_ownership() const;
  // Returns whether that has been found already: the run cannot keep anything any more. Asks no
  // store. Thread safe.
  [[nodiscard]] bool is_lost() const;

 private:
  // Locks the place of the checkpoints, unless that is the run's folder.
  void lock_checkpoints(const Recipe& recipe);
  // Fetch what is not there.
  void restore(const Recipe& recipe, Existing existing) const;
  void restore_from_mirror(const CheckpointMirror& mirror, Existing existing) const;
  void restore_run_files() const;
  // Fetches them too where the run has gone on elsewhere meanwhile.
  void catch_up() const;
  [[nodiscard]] Claim decide(const Recipe& recipe, Existing existing) const;
  void remove_run() const;

  std::filesystem::path run_;
  CheckpointFolder checkpoints_;
  UniqueFd lock_;
  std::unique_ptr<WriteLock> checkpoint_lock_;  // where they lie elsewhere
  Claim kind_;
};

// Collective: rank 0 claims the folder and keeps `claim`; every rank gets the result. Throws the
// error of RunClaim on rank 0, and PeerError with the same reason on the others.
[[nodiscard]] Claim claim_on_all_ranks(Rendezvous& rendezvous, const Recipe& recipe,
                                       Existing existing, std::optional<RunClaim>& claim);

}  // namespace troika
