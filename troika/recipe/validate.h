// Everything a recipe must satisfy whatever it was read from: ranges, and what keys demand of one
// another. What troika cannot do yet is support.h's.
#pragma once

#include <troika/config/origins.h>
#include <troika/recipe/recipe.h>
#include <troika/recipe/resolve.h>

namespace troika {

// Throws UsageError where what is compressed, or who exchanges it, leaves no room for it.
void check_compression(const Recipe& recipe, const Origins& origins);
// Throws UsageError for what does not go with parameters on servers.
void check_servers(const Recipe& recipe, const Origins& origins);
// Checks that each data rank has samples for each of a worker's local steps. `recipe` is resolved.
void check_local_steps(const Recipe& recipe, const Origins& origins);

// Throws UsageError naming place, key and the values that work, with `ranks` where they are known.
void validate(const Recipe& recipe, const Origins& origins = Origins(), KnownRanks ranks = {});

}  // namespace troika
