// [data] kind = "table": rows of Parquet, CSV and Arrow files, whose columns become the model's
// tensors.
#pragma once

#include <troika/data/kind.h>

namespace troika {

[[nodiscard]] const DataKind& table_kind();

}  // namespace troika
