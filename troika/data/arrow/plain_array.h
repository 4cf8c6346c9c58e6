// Internal: arrays of types that wrap others, as arrays of those.
#pragma once

#include <arrow/api.h>

#include <memory>

namespace troika::arrow_plugin {

// Returns the type of the values that an extension or a run-end encoding holds; any other type as
// it is. Null where they have another meaning, as a tensor whose axes are permuted.
[[nodiscard]] const arrow::DataType* plain_type(const arrow::DataType& type);

// Returns whether plain_type() is another one.
[[nodiscard]] bool is_wrapped(const arrow::DataType& type);

// Returns the values of a wrapped array.
[[nodiscard]] arrow::Result<std::shared_ptr<arrow::Array>> plain_array(const arrow::Array& array);

}  // namespace troika::arrow_plugin
