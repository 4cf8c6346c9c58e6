// Puts a value as it was written into a recipe, if it has the type of its key.
#pragma once

#include <troika/config/fields.h>
#include <troika/config/recipe.h>
#include <troika/config/toml_source.h>

namespace troika {

// Throws UsageError naming place and key when the value has another type, or is a word that is not
// one of the choices. An integer is taken where a number is wanted; ranges are validate()'s task.
void assign(Recipe& recipe, const Field& field, const TomlEntry& entry);

}  // namespace troika
