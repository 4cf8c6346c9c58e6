// A tensor that an exported program takes or returns.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

struct ExportedTensor {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::optional<std::int64_t>> sizes;  // absent: exported as a dynamic one
};

}  // namespace troika
