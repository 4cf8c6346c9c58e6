// The work of a user's own training loop, small enough that everything around the arithmetic shows:
// a perceptron 64-128-128-10 of torch::nn, 32 samples a rank, torch::optim::SGD, and DataParallel.
#pragma once

#include <troika/base/time.h>
#include <troika/session/session.h>

#include <cstdint>
#include <optional>

namespace troika {

struct MlpBenchOptions {
  // The steps of each repeat; 0: what fits the budget.
  std::int64_t steps = 0;
  int repeats = 7;
  Seconds budget{3};  // for all repeats of a kind together
  // The comparison that is measured as well, alternating: the same steps without averaging
  // gradients. Ranks take them at the same time, once with nothing that keeps ranks together, and
  // once with only a barrier after each step.
  enum class Compare { kNothing, kUnsynchronised } compare = Compare::kNothing;
};

struct MlpTiming {
  // The rates of a rank: medians over the repeats. A synchronised repeat takes what its slowest
  // rank takes; the rate of those that are not is the mean over the ranks.
  double steps_per_second = 0;
  std::optional<double> unsynchronised_steps_per_second = {};
  // The rate with a barrier after each step. No averaging of gradients can be faster than this.
  std::optional<double> barrier_steps_per_second = {};
  std::int64_t steps = 0;  // of each repeat
  int repeats = 0;
  double loss = 0;  // of the last step, on rank 0: for a look whether it learns
  // The time when rank 0 had finished its first step: seconds since 1970.
  double first_step_at = 0;
};

// Runs the benchmark. Collective. Throws as the session's group does.
[[nodiscard]] MlpTiming bench_mlp(const Session& session, const MlpBenchOptions& options);

}  // namespace troika
