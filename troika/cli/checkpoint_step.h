// Which checkpoint --step names.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>

#include <cstdint>
#include <string>

namespace troika {

inline constexpr const char* kStepHelp =
    "The checkpoint of this step; best: the best of those there, by its held-out figure";

// Returns the step of a checkpoint in `folder`: `text` is its number, or "best", for the best by
// [train] best_metric, or else the held-out loss, of those that can be read. Throws UsageError
// where it is neither; DataError naming the steps that are there, or where none was evaluated.
[[nodiscard]] std::int64_t step_asked(const std::string& text, const CheckpointFolder& folder);

}  // namespace troika
