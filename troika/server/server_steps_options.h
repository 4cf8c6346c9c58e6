// Internal. What is asked of the options of ServerSteps.
#pragma once

#include <troika/server/server_steps.h>

#include <string>

namespace troika {

// Throws UsageError for options that are out of range, with so many ranks.
void check_options(const ServerStepsOptions& options, int ranks);
// Returns what all ranks have to have in common, a line each.
[[nodiscard]] std::string description_of(const torch::nn::Module& module,
                                         const ServerStepsOptions& options);

}  // namespace troika
