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

// How one step's work is laid out. Settings that have no effect are at their defaults, so that
// equal layouts compare equal.
struct TrialLayout {
  ParallelOptions parallel;  // the data axis is a number
  std::int64_t micro_batch_size = 1;

  [[nodiscard]] int ranks() const;
  bool operator==(const TrialLayout&) const = default;
};

// `recipe` on this layout.
[[nodiscard]] Recipe recipe_on(const Recipe& recipe, const TrialLayout& layout);
// One rank, with the microbatches of `recipe`: what all others are compared with.
[[nodiscard]] TrialLayout reference_layout(const Recipe& recipe);
// Without the settings that have no effect, such as a schedule without a pipeline; `data` is 1
// where it is "auto".
[[nodiscard]] TrialLayout simplified(TrialLayout layout);

// Every combination of the axes (1 to 4 each), schedules, virtual stages, stages of ZeRO, shard
// groups, activation checkpointing, and microbatches (one a rank, and several) that this recipe can
// have on at most `most_ranks` ranks; smaller worlds first. resolve_recipe() decides what can be.
[[nodiscard]] std::vector<TrialLayout> all_layouts(const Recipe& recipe, int most_ranks);

// What a layout is made of, one number a setting: two layouts with the same number have the same.
[[nodiscard]] std::vector<int> settings_of(const TrialLayout& layout, const Recipe& recipe);
// Few of them that contain every pair of settings that any layout has: see pairwise_subset().
[[nodiscard]] std::vector<TrialLayout> pairwise_layouts(const Recipe& recipe, int most_ranks);

// What a data axis that is "auto" is on `most_ranks` ranks: as many as fit, at least 1.
[[nodiscard]] std::int64_t largest_data_axis(const ParallelOptions& parallel, int most_ranks);

struct OwnLayout {
  std::string name;                   // as describe() writes it
  std::optional<TrialLayout> layout;  // empty where it needs more ranks, or cannot be
  std::string left_out;               // then why, in one line
};

// What a recipe itself asks for in [parallel], with the microbatches of `recipe`, which are those
// that it is tried with; a data axis that is "auto" fills `most_ranks` ranks.
[[nodiscard]] OwnLayout own_layout(const Recipe& recipe, const ParallelOptions& asked,
                                   int most_ranks);

// What its numbers may differ by from the reference's.
[[nodiscard]] Tolerance tolerance_of(const TrialLayout& layout);
// The layout with which it must share every bit, if that is another one: without ZeRO and
// activation checkpointing, and, where no weight is tied across stages, without a pipeline.
[[nodiscard]] std::optional<TrialLayout> bit_reference_layout(const TrialLayout& layout,
                                                              const Recipe& recipe);

}  // namespace troika
