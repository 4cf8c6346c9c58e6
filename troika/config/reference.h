// The tables of docs/recipe.md, from the table of fields, so that page and code cannot drift apart.
#pragma once

#include <string>

namespace troika {

// Markdown: for each section a table of key, type, default, allowed values and meaning; then what
// is refused until it exists.
[[nodiscard]] std::string recipe_reference();

}  // namespace troika
