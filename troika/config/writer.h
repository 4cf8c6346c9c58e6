// Writes a document as TOML, and prints the defaults and the tables of its keys.
#pragma once

#include <troika/config/schema.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika {

// Words for the [provenance] table, which reading ignores.
using Provenance = std::vector<std::pair<std::string, std::string>>;

// Writes every key that the document's kinds have; read_document() gives the same values back, bit
// for bit.
[[nodiscard]] std::string write_document(const Schema& schema, const void* document,
                                         const Provenance& provenance = {});

// Writes every key of a document with a comment: the choices, how its default comes about, its
// meaning; and a line with the keys of each kind that the section has not chosen.
[[nodiscard]] std::string write_commented(const Schema& schema, const void* document);

// Returns Markdown: for each section, and each kind, a table of key, type, default, allowed values
// and meaning.
[[nodiscard]] std::string reference_tables(const Schema& schema);

}  // namespace troika
