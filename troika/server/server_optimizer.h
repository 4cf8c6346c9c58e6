// The optimiser that runs on servers.
#pragma once

#include <troika/optim/options.h>
#include <troika/sync/kind.h>

namespace troika {

// Returns the recipe's, or, where workers take steps of their own, that of what these change: a
// synchronous step is a push, and otherwise pushes make rounds, as in ServerShard::push().
// Parameters are all alike to it, whatever rates they have.
[[nodiscard]] OptimizerOptions optimizer_of_servers(const ServerSettings& settings,
                                                    const OptimizerOptions& of_recipe);

}  // namespace troika
