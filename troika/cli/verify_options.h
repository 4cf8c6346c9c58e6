// What `troika verify` is asked for, and the trials that come of it. Its ranks read the same
// command line, and so come to the same trials.
#pragma once

#include <troika/verify/layouts.h>
#include <troika/verify/trials.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct VerifyOptions {
  std::string file;
  std::vector<std::string> overrides;
  int ranks = 4;
  std::string layouts = "auto";  // or "all", or a list
  std::int64_t steps = 3;
  bool json = false;
  // The folder to work in, and the first trial that has no result: for the ranks that the command
  // starts.
  std::string folder;
  std::size_t first = 0;

  [[nodiscard]] TrialOptions trial_options() const { return {.steps = steps, .folder = folder}; }
};

struct VerifyPlan {
  std::vector<Trial> trials;     // the reference first
  std::optional<OwnLayout> own;  // the recipe's, where layouts are chosen automatically
};

// Returns the trials that the options ask for. Throws UsageError for layouts that the recipe cannot
// have, and what resolving its paths throws.
[[nodiscard]] VerifyPlan plan_of(const VerifyOptions& options, const Recipe& user);
// Returns the ranks of the largest trial. Requires at least one trial.
[[nodiscard]] int most_ranks(std::span<const Trial> trials);

}  // namespace troika
