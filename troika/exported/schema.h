// The schema of exported programs, as LibTorch's header has it, and its enumerations as LibTorch's
// own. Internal to this folder: the header is large, and only implementation files include it.
#pragma once

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/utils/generated_serialization_types.h>

#include <optional>
#include <string_view>

namespace troika::schema {

using namespace torch::_export;  // NOLINT(google-build-using-namespace): it is the schema

// Parses a record of JSON. Throws std::exception saying what is wrong: no JSON, deeper than any
// program is, or other fields than the schema's.
[[nodiscard]] nlohmann::json parsed(std::string_view text);

// Return LibTorch's value; nothing where it has none that programs can use.
[[nodiscard]] std::optional<at::ScalarType> type_of(ScalarType type);
[[nodiscard]] std::optional<at::MemoryFormat> memory_format_of(MemoryFormat format);

}  // namespace troika::schema
