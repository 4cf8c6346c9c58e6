// The optimiser that runs on servers.
#pragma once

#include <troika/optim/options.h>
#include <troika/sync/kind.h>

#include <cstdint>

namespace troika {

// Returns the recipe's, or, where workers take steps of their own, that of what these change, of as
// many pushes a step as the job was started with workers; synchronous ones are one. Parameters are
// all alike to it, whatever rates they have.
[[nodiscard]] OptimizerOptions optimizer_of_servers(const ServerSettings& settings,
                                                    const OptimizerOptions& of_recipe,
                                                    std::int64_t workers);

}  // namespace troika
