// The line of JSON that sums a run up, for machines: `troika train --json` prints it, and it is
// kept in <run>/summary.json.
#pragma once

#include <troika/observe/metrics.h>
#include <troika/train/best_model.h>
#include <troika/train/job.h>
#include <troika/train/tensor_memory.h>
#include <troika/train/trainer.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace troika {

// Returns summary.json, the same on every rank. Collective. It has the keys of the last step's line
// in metrics.jsonl, which is `last` and may be empty, then `steps`, `samples`, `updates`,
// `seconds`, `run`, `world_size`, `mesh` (axis: size) and `ranks`. A rank has: rank, host, pid,
// device, peak_memory_bytes, peak_tensor_bytes, kept_tensor_bytes, peak_activations, input_bytes by
// axis; on a device peak_reserved_bytes. `best` (metric, step, value) is there where a best model
// is kept. `tensors`: what is alive between steps, and the most there was. `staging_bytes`, as
// checkpoint_staging_bytes of each rank: the most that copies for checkpoints have taken.
[[nodiscard]] std::string summary_json(const Recipe& recipe, const Job& job, const Trainer& trainer,
                                       const std::string& last, Seconds seconds,
                                       const TensorMemory& tensors, const BestModel& best,
                                       std::uint64_t staging_bytes);

// Returns summary.json of a finished run, one line, as the run has printed it. Throws DataError.
[[nodiscard]] std::string read_summary(const std::filesystem::path& run);

}  // namespace troika
