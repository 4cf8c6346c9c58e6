// Reads a document from TOML and overrides. Every error names file, line and key; a misspelt key or
// word comes with the nearest known one.
#pragma once

#include <troika/config/origins.h>
#include <troika/config/schema.h>
#include <troika/config/toml_source.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The facts about a document after reading, beside its values.
struct ReadReport {
  Origins origins;                    // for checks that come later
  std::vector<TomlSection> sections;  // as they were written
  std::vector<std::string> warnings;  // one line each, for the user
};

// Fills in `document`, a fresh one of the schema's: kinds first, then their keys, then what follows
// from other keys (Component::derive). `overrides` are the arguments of --set, "KEY=VALUE" each,
// applied in order on top of the text; `source_name` stands for the file in messages. The section
// [provenance] is ignored. Ranges are check_values()'s task. Throws UsageError.
[[nodiscard]] ReadReport read_document(const Schema& schema, void* document, std::string_view text,
                                       std::string_view source_name,
                                       std::span<const std::string> overrides = {});

}  // namespace troika
