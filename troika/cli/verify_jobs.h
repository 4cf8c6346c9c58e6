// The jobs of ranks in which `troika verify` runs its trials: one, if all goes well, and one more
// behind each trial that fails.
#pragma once

#include <troika/cli/verify_options.h>

#include <functional>
#include <span>

namespace troika {

// Runs this command again as ranks, in options.folder, until every trial has a result there. The
// ranks record theirs; `on_result` is called here with the result of a trial that brought its job
// down. Returns the exit code of an interruption, else 0. Throws the error of a job that has failed
// before the reference had a result, or behind the last trial.
[[nodiscard]] int run_jobs(const VerifyOptions& options, std::span<const Trial> trials,
                           const std::function<void(const TrialResult&)>& on_result);

}  // namespace troika
