// The line of JSON that sums a run up, for machines: `troika train --json` prints it, and it is
// kept in <run>/summary.json.
#pragma once

#include <troika/observe/metrics.h>
#include <troika/train/best_model.h>
#include <troika/train/job.h>
#include <troika/train/tensor_memory.h>
#include <troika/train/trainer.h>

#include <string>

namespace troika {

// Collective. The keys of the last step's line in metrics.jsonl, then `steps`, `samples`,
// `updates`, `seconds`, `run`, `world_size`, `mesh` (axis: size) and `ranks` (rank, host, pid,
// peak_memory_bytes, peak_tensor_bytes, kept_tensor_bytes, peak_activations, input_bytes by axis).
// `best` (metric, step, value) is there where a best model is kept. The same on every rank.
// `tensors`: what is alive between steps, and the most there was.
[[nodiscard]] std::string summary_json(const Recipe& recipe, const Job& job, const Trainer& trainer,
                                       const StepMetrics& last, Seconds seconds,
                                       const TensorMemory& tensors, const BestModel& best);

}  // namespace troika
