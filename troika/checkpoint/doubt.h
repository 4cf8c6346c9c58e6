// Marks what a run has kept of training that turns out to be in doubt, as where hosts have trained
// on files that differ: checkpoints, wherever they lie, and models. All that reads them asks here.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace troika {

// The name, in a manifest's provenance, of the reason why a checkpoint is in doubt. Beside a
// model's file, a file of that suffix has the reason.
inline constexpr const char* kDoubt = "doubt";

// The treatment of checkpoints in doubt by a run that goes on.
enum class TakeDoubtful { kNo, kYes };

// Return the reason why it is in doubt; empty where it is not. The second is for the folder or the
// URL of one checkpoint, or for the file of a model. Throws DataError where a manifest cannot be
// read.
[[nodiscard]] std::string doubt_of(const Manifest& manifest);
[[nodiscard]] std::string doubt_of(const std::filesystem::path& place);
// Returns why a run does not go on from a checkpoint; empty where it does.
[[nodiscard]] std::string objection_to(const Manifest& manifest, TakeDoubtful doubtful);

// Marks the checkpoints of step `first` and later. `check` is as for CheckpointFolder::commit().
// Those that can be marked are, also where others cannot. Throws the first error then.
void mark_doubtful(const CheckpointFolder& folder, std::int64_t first, const std::string& reason,
                   const std::function<void()>& check = {});
// Marks the file of a model. Throws StorageError.
void mark_doubtful(const std::filesystem::path& model, const std::string& reason);
// Removes the mark of a model's file, which has been written again. Throws StorageError.
void clear_doubt(const std::filesystem::path& model);

}  // namespace troika
