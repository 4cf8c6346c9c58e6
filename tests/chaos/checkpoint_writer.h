// A training in small: state of 1 MB that each step changes, and what a run does to take a
// checkpoint of it, on two ranks one after the other.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/param/state_dict.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace troika::chaos {

inline constexpr int kRanks = 2;
inline constexpr std::int64_t kKeep = 2;

// Returns the state of a rank after a step.
[[nodiscard]] StateDict state_of(int rank, std::int64_t step);

// Takes the checkpoint of a step. `attempt` is in its files' names. `committed` is called when it
// is there, before older ones are removed. Throws StorageError.
void take_checkpoint(const CheckpointFolder& folder, std::int64_t step, const std::string& attempt,
                     const std::function<void()>& committed = {});
// The files of the ranks alone, as of a run that was killed before it had a manifest.
void write_shards(const CheckpointFolder& folder, std::int64_t step, const std::string& attempt);

// Returns why the newest checkpoint is not `step`, whole and with exactly its values on any rank;
// empty where it is. What says which one is the newest is what a run asks as it goes on.
[[nodiscard]] std::string difference_of_newest(const CheckpointFolder& folder, std::int64_t step);

}  // namespace troika::chaos
