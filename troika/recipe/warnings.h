// What a recipe may say, and its writer is not likely to have meant.
#pragma once

#include <troika/config/origins.h>
#include <troika/recipe/recipe.h>

#include <string>
#include <vector>

namespace troika {

// Returns one line for each setting of a valid recipe that has no effect or is likely a slip.
[[nodiscard]] std::vector<std::string> warnings_of(const Recipe& recipe,
                                                   const Origins& origins = Origins());

// Returns one line for each setting that has less effect than its name says on the ranks of a
// resolved recipe.
[[nodiscard]] std::vector<std::string> warnings_of_layout(const Recipe& resolved,
                                                          const Origins& origins = Origins());

}  // namespace troika
