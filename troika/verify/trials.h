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
  // The folder of the runs. Files that are not needed any more are removed at once.
  std::filesystem::path folder;
  // The time-out of each step, for ranks that wait until a trial is over. One more such time covers
  // its start and the comparison.
  Seconds step_timeout{1200};
};

// Returns the recipe of a trial of `user`: the same model, data and seed. It has fp64, SGD with
// momentum and the user's weight decay (AdamW divides noise by noise, and hides a wrong scale).
// Reductions are in rank order, the first and the last step are dumped, and the batch has at most
// `most_samples`.
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

// Returns the reference first, then each layout once, behind the one that it must share its bits
// with.
[[nodiscard]] std::vector<Trial> plan_trials(const Recipe& recipe,
                                             std::span<const TrialLayout> layouts);

// The outcome of one trial.
struct TrialResult {
  std::string layout;
  int ranks = 1;
  Comparison with_reference;
  // The comparison with the bit reference; empty if there is none.
  std::optional<Comparison> with_bit_reference;
  std::string error;  // why it did not come to its end

  [[nodiscard]] bool agrees() const;
  // Returns "DIFFERS in ...", in words for one line; empty if it agrees.
  [[nodiscard]] std::string describe_failure() const;
};

// Write and read one line of JSON. trial_result_of() throws DataError on any other text.
[[nodiscard]] std::string to_json(const TrialResult& result);
[[nodiscard]] TrialResult trial_result_of(std::string_view json);

// Runs trials [first, end). Collective over `world`, which has the ranks of the largest trial and a
// launcher that keeps its store. Each trial runs on the world's first ranks, while the others wait
// for its end. Rank 0 calls `done` after each. Throws the error of a run, and DeadlineError where a
// trial takes too long; the other trials are then for another job to run.
void run_trials(std::span<const Trial> trials, std::size_t first, const World& world,
                const TrialOptions& options, const std::function<void(const TrialResult&)>& done);

}  // namespace troika
