// Which key of a section a word that is none may stand for.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troika {

// The key that the word is a misspelling of; else the first that begins with it ("zero" of
// zero_stage), else the first that contains it or that it contains ("schedule" of
// pipeline_schedule). Nothing where there is none, and by parts for words of four letters or more
// alone.
[[nodiscard]] std::optional<std::string> nearest_key(std::string_view word,
                                                     std::span<const std::string_view> keys);

}  // namespace troika
