// Puts a value as it was written into a document, if it has the type of its key.
#pragma once

#include <troika/config/schema.h>
#include <troika/config/toml_source.h>

namespace troika {

// Puts the value of `entry` into the document. Throws UsageError naming place and key when the
// value has another type, or is a word that is not one of the choices. An integer is taken where a
// number is wanted; ranges are check_values()'s task. A kind comes with its default options.
void assign(const Schema& schema, void* document, const SchemaKey& key, const TomlEntry& entry);

}  // namespace troika
