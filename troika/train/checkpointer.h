// When a run takes checkpoints, and what is done beside each of them.
#pragma once

#include <troika/checkpoint/background_commit.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/doubt.h>
#include <troika/recipe/recipe.h>
#include <troika/server/compared_data.h>
#include <troika/train/best_checkpoints.h>
#include <troika/train/checkpoint_mirror.h>
#include <troika/train/job.h>
#include <troika/train/trainer.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

namespace troika {

class BestModel;
class RunClaim;

// Return where the checkpoints of a run lie: as its recipe says, and, for commands, as the recipe
// in its folder does, for reading. A folder of checkpoints that is no run's, and a URL, is taken as
// it is. The first throws UsageError where the recipe names a key that cannot be read.
[[nodiscard]] CheckpointFolder checkpoints_of(const Recipe& recipe);
[[nodiscard]] CheckpointFolder checkpoints_of(const std::filesystem::path& run);
// Returns the file that asks a run for a checkpoint: it is taken after the step that is under way,
// and the file is removed.
[[nodiscard]] std::filesystem::path checkpoint_request_path(const std::filesystem::path& run);

// Ranks copy their parts and write them in the background. Rank 0 commits a checkpoint as soon as
// all files are written, whatever the step under way does (BackgroundCommit).
class Checkpointer {
 public:
  // Collective. `provenance` goes into the manifests. `best` says which ones stay beside the
  // newest, and `claim` is rank 0's, null on the others; both must outlive this, as must the recipe
  // and the job.
  Checkpointer(const Recipe& recipe, const Job& job, Metadata provenance,
               const BestCheckpoints& best, const RunClaim* claim);
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;
  ~Checkpointer() = default;

  // Adds an entry to the provenance of the manifests that follow.
  void note(const std::string& name, const std::string& value) { provenance_[name] = value; }
  // Returns what this rank tells the others with a step: that a checkpoint is to be taken after it.
  [[nodiscard]] bool is_wanted() const;

  // Collective, after each step but the last: takes a checkpoint where one is due, once the one
  // before is there. `state` returns the state of the run. A checkpoint that cannot be written is a
  // warning, and the run goes on. Throws StorageError on rank 0 where another run has taken the
  // place of the checkpoints.
  void after_step(std::int64_t step, const StepNotes& notes,
                  const std::function<StateDict()>& state);
  // Collective, after the last step: takes one where the recipe asks for any, so that the run can
  // go on with more steps, and returns when it is there. One that cannot be written is a warning.
  void take_at_end(std::int64_t step, const std::function<StateDict()>& state);
  // Collective: takes one now, and returns when it is there. Throws StorageError where it cannot be
  // written.
  void take_last(std::int64_t step, const StateDict& state);
  // Collective, after each step: marks what has been kept of doubt.certain and of later steps:
  // checkpoints, those too that are yet to be taken, their copies in a mirror, and the best model
  // if it is of one of them. While there may be a doubt, the newest checkpoint without one is not
  // removed, whatever `keep` says.
  void doubt(const DataDoubt& doubt, const BestModel& best);
  // Collective: returns when none is under way. One that could not be written is a warning.
  void finish();
  // Collective: returns whether the best model that lies in the run's folder is in doubt.
  [[nodiscard]] bool has_doubtful_best() const;
  // Gives what is being written the time to become a checkpoint, before the run ends with this
  // error. Not collective. The wait is short for an error that is another rank's, which may have
  // died before its file was there.
  void finish_before(const std::exception& error) const;
  // Returns the most bytes that copies of this rank's parts have taken.
  [[nodiscard]] std::uint64_t staging_bytes() const { return staging_bytes_; }

 private:
  void mark_doubtful(const BestModel& best);
  [[nodiscard]] bool is_due(std::int64_t step, const StepNotes& notes) const;
  [[nodiscard]] CommitSettings settings();
  void check_ownership() const;
  void log_problem(const std::string& problem) const;
  void begin(std::int64_t step, const StateDict& state, std::uint64_t most_copied);

  const Recipe& recipe_;
  const Job& job_;
  Metadata provenance_;
  const BestCheckpoints& best_;
  const RunClaim* claim_;
  std::filesystem::path run_;
  CheckpointFolder folder_;
  Clock::time_point last_ = Clock::now();
  std::int64_t step_ = 0;  // of the last one that was begun
  DataDoubt doubt_;
  std::atomic<std::int64_t> doubtful_from_ = DataDoubt::kNever;  // also asked in the background
  std::uint64_t staging_bytes_ = 0;
  std::optional<CheckpointMirror> mirror_;
  BackgroundCommit commit_;
};

// The state that a run goes on from, and the provenance in its manifest.
struct ResumedState {
  StateDict state;
  Metadata provenance;
};

// Collective: brings the state of the newest checkpoint of the run that is whole into the trainer,
// and returns it. Damaged ones, and those in doubt, are told in warnings. Throws DataError where
// none can be used.
[[nodiscard]] ResumedState resume_newest(const CheckpointFolder& folder, const Job& job,
                                         Trainer& trainer, TakeDoubtful doubtful);

}  // namespace troika
