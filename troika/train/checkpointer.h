// When a run takes checkpoints, and how its ranks agree that one is there.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/state_writer.h>
#include <troika/recipe/recipe.h>
#include <troika/train/best_checkpoints.h>
#include <troika/train/checkpoint_mirror.h>
#include <troika/train/job.h>
#include <troika/train/trainer.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troika {

// Return where the checkpoints of a run lie: as its recipe says, and, for commands, as the recipe
// in its folder does, for reading. A folder of checkpoints that is no run's, and a URL, is taken as
// it is. The first throws UsageError where the recipe names a key that cannot be read.
[[nodiscard]] CheckpointFolder checkpoints_of(const Recipe& recipe);
[[nodiscard]] CheckpointFolder checkpoints_of(const std::filesystem::path& run);
// Returns the file that asks a run for a checkpoint: it is taken after the step that is under way,
// and the file is removed.
[[nodiscard]] std::filesystem::path checkpoint_request_path(const std::filesystem::path& run);

// The name, in a manifest's provenance, of the reason why a checkpoint is in doubt.
inline constexpr const char* kDoubt = "doubt";

// Ranks copy their parts and write them in the background. With each step they tell each other
// whether they are done. Once all are, rank 0 writes the manifest, also in the background.
class Checkpointer {
 public:
  // Collective. `provenance` goes into the manifests. `best` says which ones stay beside the
  // newest; both must outlive this.
  Checkpointer(const Recipe& recipe, const Job& job, Metadata provenance,
               const BestCheckpoints& best);
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;
  ~Checkpointer() = default;

  // Return what this rank tells the others with a step: that a checkpoint is to be taken after it,
  // and that it is done with the one before.
  [[nodiscard]] bool is_wanted() const;
  [[nodiscard]] bool is_done() const { return !writer_.is_writing() || writer_.is_done(); }

  // Collective, after each step but the last: takes a checkpoint where one is due, and commits the
  // one before once it is on disk. `state` returns the state of the run. A checkpoint that cannot
  // be written is a warning, and the run goes on.
  void after_step(std::int64_t step, const StepNotes& notes,
                  const std::function<StateDict()>& state);
  // Collective, after the last step: takes one where the recipe asks for any, so that the run can
  // go on with more steps, and returns when it is there. One that cannot be written is a warning.
  void take_at_end(std::int64_t step, const std::function<StateDict()>& state);
  // Collective: takes one now, and returns when it is there. Throws StorageError where it cannot be
  // written.
  void take_last(std::int64_t step, const StateDict& state);
  // Collective: returns when none is under way.
  void finish();
  // Collective: marks the checkpoints of steps behind `step` in their manifests, as kDoubt, where
  // what has been trained since is in doubt for `reason`.
  void mark_doubtful(std::int64_t step, const std::string& reason);
  // Returns the most bytes that copies of this rank's parts have taken.
  [[nodiscard]] std::uint64_t staging_bytes() const { return staging_bytes_; }

 private:
  [[nodiscard]] bool is_due(std::int64_t step, const StepNotes& notes) const;
  void begin(std::int64_t step, const StateDict& state, std::uint64_t most_copied);
  // Collective: waits for all ranks' files, and has rank 0 commit them. Returns what went wrong.
  std::string commit();
  [[nodiscard]] Manifest manifest_of(std::span<const ShardReport> reports) const;
  void remove_old(const Manifest& manifest);
  void copy_to_mirror(std::int64_t step);
  // Waits for rank 0's own background work. Returns what went wrong.
  std::string join_commit();

  const Recipe& recipe_;
  const Job& job_;
  Metadata provenance_;
  const BestCheckpoints& best_;
  std::filesystem::path run_;
  CheckpointFolder folder_;
  std::string attempt_;
  Clock::time_point last_ = Clock::now();
  std::int64_t step_ = 0;  // of the one under way
  std::map<std::string, StateDict::Number> numbers_;
  StateWriter writer_;
  std::uint64_t staging_bytes_ = 0;
  std::optional<CheckpointMirror> mirror_;
  std::string commit_problem_;         // of the background work, to be read once it has ended
  std::vector<std::string> warnings_;  // the same, of a checkpoint that is there
  std::jthread commit_;
};

// What a run goes on from, and the provenance that its manifest has.
struct ResumedState {
  StateDict state;
  Metadata provenance;
};

// The treatment of checkpoints with kDoubt.
enum class TakeDoubtful { kNo, kYes };

// Collective: brings the state of the newest checkpoint of the run that is whole into the trainer,
// and returns it. Damaged ones, and those in doubt, are told in warnings. Throws DataError where
// none can be used.
[[nodiscard]] ResumedState resume_newest(const CheckpointFolder& folder, const Job& job,
                                         Trainer& trainer, TakeDoubtful doubtful);

}  // namespace troika
