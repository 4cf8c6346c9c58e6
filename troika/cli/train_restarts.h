// How far a run of `troika train` has come, for a launcher that starts it again.
#pragma once

#include <troika/launch/agent.h>
#include <troika/recipe/recipe.h>
#include <troika/train/claim.h>

namespace troika {

// Runs the ranks of a training run, again after a death as often as elastic.max_restarts allows:
// see run_with_restarts(). Only the first start replaces an older run of the name.
[[nodiscard]] LaunchResult train_with_restarts(LaunchOptions options, const Recipe& recipe,
                                               Existing existing);

}  // namespace troika
