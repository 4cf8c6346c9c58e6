// Layouts in words, as `troika verify` prints them and reads them from --layouts: the keys of
// [parallel] that differ from one rank's.
#pragma once

#include <troika/recipe/recipe.h>
#include <troika/verify/layouts.h>

#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Describes a layout as parse_layouts() reads it: "data=2,pipeline=2,pipeline_schedule=zb-v".
// Leaves out settings at their defaults, and the microbatch of `recipe`. Returns "data=1" for the
// reference.
[[nodiscard]] std::string describe(const TrialLayout& layout, const Recipe& recipe);

// Parses "tensor=2,pipeline=2; data=4,zero_stage=3": keys of [parallel], and micro_batch_size.
// `data` is 1 where it is not given, and "auto" fills `most_ranks`. Throws UsageError as reading
// and resolving a recipe does, naming --layouts and the setting.
[[nodiscard]] std::vector<TrialLayout> parse_layouts(std::string_view text, const Recipe& recipe,
                                                     int most_ranks);

}  // namespace troika
