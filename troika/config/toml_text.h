// Values as TOML text, written so that reading it gives the same bits back.
#pragma once

#include <troika/config/schema.h>

#include <string>
#include <string_view>

namespace troika {

// Returns the shortest decimal that reads back as the same double, with a point or an exponent:
// "0.1", "1e-5", "10000.0", "nan".
[[nodiscard]] std::string toml_number(double value);

// Returns `text` in double quotes, with quotes, backslashes and control characters escaped.
[[nodiscard]] std::string toml_string(std::string_view text);

// Returns the value of a key in the options struct that its accessors take.
[[nodiscard]] std::string toml_value(const Key& key, const void* options);
// Returns the value of a key in a document.
[[nodiscard]] std::string toml_value(const SchemaKey& key, const void* document);
// Returns the value that a document starts from.
[[nodiscard]] std::string default_value(const Schema& schema, const SchemaKey& key);

}  // namespace troika
