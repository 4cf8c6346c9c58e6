// The JSON text of a safetensors header, to and from entries. Places are only read here, not
// checked; that is safetensors_header.cc's work.
#pragma once

#include <troika/checkpoint/safetensors_header.h>

#include <span>
#include <string>
#include <string_view>

namespace troika::detail {

// Throws DataError naming `source` and the tensor: invalid JSON, any other structure than the
// format's, a name twice, an unknown type or field, a number that is no dimension or offset.
// Nesting is bounded by the structure, so that no text exhausts the stack.
[[nodiscard]] SafetensorsHeader parse_header_json(std::string_view json, const std::string& source);

// Throws UsageError: a name twice or reserved, text that is not UTF-8.
[[nodiscard]] std::string format_header_json(std::span<const TensorEntry> entries,
                                             const Metadata& metadata);

}  // namespace troika::detail
