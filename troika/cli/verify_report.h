// What `troika verify` prints: a table that grows as trials end, and how it all came out.
#pragma once

#include <troika/cli/verify_options.h>
#include <troika/verify/trials.h>

#include <span>
#include <string>

namespace troika {

// Returns what is going to be tried, the recipe's own layout where that is not tried, and the
// columns' names: a line each. `user` is the recipe as it was given; there are at least two trials.
[[nodiscard]] std::string heading_of(const VerifyOptions& options, const Recipe& user,
                                     const VerifyPlan& plan);
// Returns the line of one trial, and a second one that says what is wrong with it, if anything is.
[[nodiscard]] std::string line_of(const TrialResult& result);
// Return the last line: of a text, or of JSON with all there is to know. The first result is the
// reference's.
[[nodiscard]] std::string summary_of(std::span<const TrialResult> results);
[[nodiscard]] std::string to_json(const VerifyOptions& options, const VerifyPlan& plan,
                                  std::span<const TrialResult> results);
[[nodiscard]] bool all_agree(std::span<const TrialResult> results);

}  // namespace troika
