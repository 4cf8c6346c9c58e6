// Who may write to the folder of a run, and what a run that was there before means for the same
// command given again.
#pragma once

#include <troika/base/file.h>
#include <troika/recipe/recipe.h>
#include <troika/rendezvous/rendezvous.h>

#include <filesystem>
#include <optional>

namespace troika {

// The treatment of a run that exists already.
enum class Existing { kRefuseOthers, kOverwrite, kResume };

enum class Claim {
  kFresh,        // nothing is there
  kOverwritten,  // a run is to be cleared away, as asked
  kFinished,     // this very recipe has been trained: nothing to do
};

// The right to write to a run's folder, during its lifetime. <run>/.lock is locked (flock), and
// names host and process.
class RunClaim {
 public:
  // Decides, and changes only the lock. Throws UsageError when another recipe has the name, when
  // the run is unfinished and has taken a step, when there is no checkpoint to resume from, or when
  // another process holds the lock; StorageError.
  RunClaim(const Recipe& recipe, Existing existing);

  [[nodiscard]] Claim kind() const { return kind_; }
  // Clears away the earlier run, once the new one of `ranks` ranks can begin. Removes only files
  // that runs write, and no flight recorder of these ranks, which are running.
  void clear(int ranks) const;

 private:
  [[nodiscard]] Claim decide(const Recipe& recipe, Existing existing) const;

  std::filesystem::path run_;
  UniqueFd lock_;
  Claim kind_;
};

// Collective: rank 0 claims the folder and keeps `claim`; every rank gets the result. Throws the
// error of RunClaim on rank 0, and PeerError with the same reason on the others.
[[nodiscard]] Claim claim_on_all_ranks(Rendezvous& rendezvous, const Recipe& recipe,
                                       Existing existing, std::optional<RunClaim>& claim);

}  // namespace troika
