// What rank 0 tells of a run: how it begins, and what has come of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/data/dataset.h>
#include <troika/observe/metrics.h>
#include <troika/train/best_model.h>
#include <troika/train/claim.h>
#include <troika/train/job.h>
#include <troika/train/trainer.h>

#include <string>

namespace troika {

// Says what becomes of what is in the folder already.
void log_claim(Claim claim, const std::string& folder);
// Returns "engine shm", or "device cuda:0, engine nccl" with what carries a device's tensors.
// Collective.
[[nodiscard]] std::string carriers_text(const Job& job, at::Device device);
// Says what is trained, on what. `carriers` names the engines.
void log_start(const Recipe& recipe, const Job& job, const Trainer& trainer, const Dataset& dataset,
               const std::string& carriers);
void log_result(const Recipe& recipe, const Trainer& trainer, const StepMetrics& last,
                Seconds seconds, const BestModel& best);

}  // namespace troika
