// Everything a recipe must satisfy whatever it was read from: ranges, and what keys demand of one
// another. What troika cannot do yet is support.h's.
#pragma once

#include <troika/config/layout.h>
#include <troika/config/origins.h>
#include <troika/config/recipe.h>

#include <string>
#include <vector>

namespace troika {

// Throws UsageError naming place, key and the values that work, with `ranks` where they are known.
void validate(const Recipe& recipe, const Origins& origins = Origins(), KnownRanks ranks = {});

// One line for each setting that is legal but has no effect or is likely a slip.
[[nodiscard]] std::vector<std::string> warnings_of(const Recipe& recipe,
                                                   const Origins& origins = Origins());

}  // namespace troika
