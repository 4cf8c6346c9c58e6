// The layouts on which a recipe's model is trained to see that its numbers stay the same: all that
// fit a number of ranks, a pairwise selection of them, and what each of
// them promises.
#pragma once

#include <troika/recipe/recipe.h>
#include <troika/verify/comparison.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// The most ranks that trials are started on.
constexpr int kMostTrialRanks = 64;

// The layout of one step's work. Settings that have no effect are at their defaults, so that equal
// layouts compare equal.
struct TrialLayout {
  ParallelOptions parallel;  // the data axis is a number
  std::int64_t micro_batch_size = 1;

  [[nodiscard]] int ranks() const;
  bool operator==(const TrialLayout&) const = default;
};

// Returns `recipe` on this layout.
[[nodiscard]] Recipe recipe_on(const Recipe& recipe, const TrialLayout& layout);
// Returns the layout that all others are compared with: one rank, with the microbatches of
// `recipe`.
[[nodiscard]] TrialLayout reference_layout(const Recipe& recipe);
// Returns the layout without the settings that have no effect, such as a schedule without a
// pipeline. `data` is 1 where it is "auto".
[[nodiscard]] TrialLayout simplified(TrialLayout layout);

// Returns every layout that this recipe can have on at most `most_ranks` ranks, smaller worlds
// first. Combines the axes (1 to 4 each), schedules, virtual stages, stages of ZeRO, shard groups,
// activation checkpointing, and microbatches (one a rank, and several). resolve_recipe() decides
// which combinations are possible.
[[nodiscard]] std::vector<TrialLayout> all_layouts(const Recipe& recipe, int most_ranks);

// Returns the settings of a layout as numbers, one a setting. Two layouts with the same number have
// the same setting.
[[nodiscard]] std::vector<int> settings_of(const TrialLayout& layout, const Recipe& recipe);
// Returns few of them that contain every pair of settings that any layout has: see
// pairwise_subset().
[[nodiscard]] std::vector<TrialLayout> pairwise_layouts(const Recipe& recipe, int most_ranks);

// Returns the size of a data axis that is "auto" on `most_ranks` ranks: the largest that fits, at
// least 1.
[[nodiscard]] std::int64_t largest_data_axis(const ParallelOptions& parallel, int most_ranks);

struct OwnLayout {
  std::string name;                   // as describe() writes it
  std::optional<TrialLayout> layout;  // empty where it needs more ranks, or cannot be
  std::string left_out;               // then why, in one line
};

// Returns the layout that a recipe's own [parallel] asks for, with the microbatches of `recipe`,
// which the trial uses. A data axis that is "auto" fills `most_ranks` ranks.
[[nodiscard]] OwnLayout own_layout(const Recipe& recipe, const ParallelOptions& asked,
                                   int most_ranks);

// Returns the tolerance of its numbers against the reference's.
[[nodiscard]] Tolerance tolerance_of(const TrialLayout& layout);
// Returns the layout with which it must share every bit, if that is another one. That layout is
// without ZeRO and activation checkpointing, and, where no weight is tied across stages, without a
// pipeline.
[[nodiscard]] std::optional<TrialLayout> bit_reference_layout(const TrialLayout& layout,
                                                              const Recipe& recipe);

}  // namespace troika
