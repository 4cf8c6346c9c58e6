// Which workers of a simulated job come and go: --join and --leave of `troika simulate sync`.
#pragma once

#include <troika/simulate/sync_simulation.h>

#include <span>
#include <string>
#include <vector>

namespace troika {

// Returns when each worker is there: first the `starting` ones, then one for each of `joins` (s,
// above 0), the earliest first. `leaves` are "WORKER@SECONDS", with workers counted from 0 in that
// order. Empty where all stay. Throws UsageError naming what is no such time or no such worker.
[[nodiscard]] std::vector<WorkerStay> worker_stays(int starting, std::vector<double> joins,
                                                   std::span<const std::string> leaves);

}  // namespace troika
