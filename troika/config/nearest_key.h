// Finds the key of a section that an unknown word may stand for.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troika {

// Returns the key that the word is a misspelling of. Else it is the first that begins with the word
// ("zero" of zero_stage). Else it is the first that contains the word or that the word contains
// ("schedule" of pipeline_schedule). Returns nothing where there is none. Only parts of four
// letters or more count.
[[nodiscard]] std::optional<std::string> nearest_key(std::string_view word,
                                                     std::span<const std::string_view> keys);

}  // namespace troika
