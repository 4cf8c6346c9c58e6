// Starts a job again after a rank or a host of it has died, while it gets further.
#pragma once

#include <troika/launch/agent.h>

#include <functional>

namespace troika {

// Says what decides whether a start has come further than the one before it.
enum class RestartsBy {
  kSteps,  // options.progress says how far the job is
  kCount,  // the launcher does not know: each start counts
};

struct RestartPolicy {
  int max_restarts = 0;
  RestartsBy by = RestartsBy::kSteps;
  // Changes what is started, before each start but the first; may be empty.
  std::function<void(LaunchOptions&)> prepare = {};
};

// Calls run_ranks(), and calls it again as long as the job may do better
// (LaunchResult::can_restart) and `policy` allows. Each time a line in the log says why and from
// where. A start that takes no step, by options.progress, or that ends at the same step as the one
// before, ends the job: the result is then that of the end before, which is the cause. Launchers of
// several nodes decide alike. Throws as run_ranks() does. Needs options.progress where the policy
// allows a restart by steps.
[[nodiscard]] LaunchResult run_with_restarts(LaunchOptions options, const RestartPolicy& policy);

}  // namespace troika
