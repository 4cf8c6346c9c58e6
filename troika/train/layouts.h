// The layouts on which a recipe's model is trained to see that its numbers stay the same: all that
// fit a number of ranks, a small part of them in which every two settings meet, and what each of
// them promises.
#pragma once

#include <troika/config/recipe.h>
#include <troika/train/comparison.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// How one step's work is laid out. Settings that have no effect are at their defaults, so that
// equal layouts compare equal.
struct TrialLayout {
  ParallelRecipe parallel;  // the data axis is a number
  std::int64_t micro_batch_size = 1;

  [[nodiscard]] int ranks() const;
  bool operator==(const TrialLayout&) const = default;
};

// `recipe` on this layout.
[[nodiscard]] Recipe recipe_on(const Recipe& recipe, const TrialLayout& layout);
// One rank, with the microbatches of `recipe`: what all others are compared with.
[[nodiscard]] TrialLayout reference_layout(const Recipe& recipe);
// As parse_layouts() reads it: "data=2,pipeline=2,pipeline_schedule=zb-v"; settings at their
// defaults, and the microbatch of `recipe`, are left out. "data=1" for the reference.
[[nodiscard]] std::string describe(const TrialLayout& layout, const Recipe& recipe);

// Every combination of the axes (1 to 4 each), schedules, chunks, stages of ZeRO, shard groups,
// activation checkpointing, and microbatches (one a rank, and several) that this recipe can have
// on at most `most_ranks` ranks; smaller worlds first. resolve_recipe() decides what can be.
[[nodiscard]] std::vector<TrialLayout> all_layouts(const Recipe& recipe, int most_ranks);

// What a layout is made of, one number a setting: two layouts with the same number have the same.
[[nodiscard]] std::vector<int> settings_of(const TrialLayout& layout, const Recipe& recipe);
// Positions of rows such that any two settings that meet in a row meet in one of these: few of
// them, by a greedy choice that depends on nothing but `rows`. Rows are of one length.
[[nodiscard]] std::vector<std::size_t> cover_pairs(std::span<const std::vector<int>> rows);
[[nodiscard]] std::vector<TrialLayout> covering_layouts(const Recipe& recipe, int most_ranks);

// "tensor=2,pipeline=2; data=4,zero_stage=3": keys of [parallel], and micro_batch_size; `data`
// is 1 where it is not given. Throws UsageError as reading and resolving a recipe does.
[[nodiscard]] std::vector<TrialLayout> parse_layouts(std::string_view text, const Recipe& recipe);

// What its numbers may differ by from the reference's.
[[nodiscard]] Tolerance tolerance_of(const TrialLayout& layout);
// The layout with which it must share every bit, if that is another one: without ZeRO and
// activation checkpointing, and, where no weight is tied across stages, without a pipeline.
[[nodiscard]] std::optional<TrialLayout> bit_twin(const TrialLayout& layout, const Recipe& recipe);

}  // namespace troika
