// A tensor that an exported program takes or returns.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace troika {

struct ExportedTensor {
  // Bounds a dynamic extent: the program kept branches for these.
  struct Range {
    std::int64_t least = 0;
    std::int64_t most = std::numeric_limits<std::int64_t>::max();
  };

  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::optional<std::int64_t>> sizes;  // absent: exported as a dynamic one
  std::vector<Range> ranges;                       // of each
};

}  // namespace troika
