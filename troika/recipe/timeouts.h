// What a recipe says of waiting. The processes of a run wait for each other as [comm] says, and
// longer where the recipe names an object store, since any of them may be waiting for that one.
#pragma once

#include <troika/base/time.h>
#include <troika/recipe/recipe.h>

namespace troika {

// Returns the time until all ranks have joined, and have opened their data.
[[nodiscard]] Seconds start_timeout(const Recipe& recipe);
// Returns the time of one collective of a step.
[[nodiscard]] Seconds step_timeout(const Recipe& recipe);

// Has this process read from object stores, and write to them, as [storage] and [data] cache say.
void apply_store_options(const Recipe& recipe);

}  // namespace troika
