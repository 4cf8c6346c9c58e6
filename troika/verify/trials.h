// Trains one recipe on several layouts, one after the other in the same processes, and compares
// what comes out with one rank: what `troika verify` and the parity tests run.
#pragma once

#include <troika/base/time.h>
#include <troika/recipe/recipe.h>
#include <troika/rendezvous/world.h>
#include <troika/verify/comparison.h>
#include <troika/verify/layouts.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct TrialOptions {
  std::int64_t steps = 3;
  // Where the runs go; what is not needed any more is removed at once.
  std::filesystem::path folder;
  // For ranks that wait until a trial is over: what each step may take, and one more for its start
  // and the comparison.
  Seconds step_timeout{1200};
};

// `user` as it is tried: the same model, data and seed; fp64, SGD with momentum and the user's
// weight decay (AdamW divides noise by noise, and hides a wrong scale), reductions in rank order,
// dumps of the first and the last step, and a batch of at most `most_samples`.
[[nodiscard]] Recipe trial_recipe(const Recipe& user, std::int64_t most_samples,
                                  const TrialOptions& options);

struct Trial {
  std::string name;  // of its layout
  Recipe recipe;
  int ranks = 1;
  Tolerance tolerance;
  std::optional<std::size_t> bit_reference;  // among the trials before it: must have the same bits
  bool is_needed_later = false;
};

// The reference first, then each layout once, behind the one that it must share its bits with.
[[nodiscard]] std::vector<Trial> plan_trials(const Recipe& recipe,
                                             std::span<const TrialLayout> layouts);

// What became of one trial.
struct TrialResult {
  std::string layout;
  int ranks = 1;
  Comparison with_reference;
  // With the bit reference; empty where there is none.
  std::optional<Comparison> with_bit_reference;
  std::string error;  // why it did not come to its end

  [[nodiscard]] bool agrees() const;
  // "DIFFERS in ...", in words for one line; empty where it agrees.
  [[nodiscard]] std::string describe_failure() const;
};

// One line of JSON, and back. Throws DataError on anything else.
[[nodiscard]] std::string to_json(const TrialResult& result);
[[nodiscard]] TrialResult trial_result_of(std::string_view json);

// Collective over `world`, which has the ranks of the largest trial and a launcher that keeps its
// store: trials [first, end), each on the world's first ranks, while the others wait for its end.
// Rank 0 calls `done` after each. Throws what a run throws, and DeadlineError where a trial takes
// too long; the other trials are then for another job to run.
void run_trials(std::span<const Trial> trials, std::size_t first, const World& world,
                const TrialOptions& options, const std::function<void(const TrialResult&)>& done);

}  // namespace troika
