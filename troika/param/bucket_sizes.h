// How gradients are grouped for their reduction.
#pragma once

#include <cstdint>

namespace troika {

struct BucketSizes {
  // The first bucket is small, so that communication starts early; the others are large, so that
  // it is efficient.
  std::int64_t first_bytes = std::int64_t{1} << 20;
  std::int64_t bytes = std::int64_t{16} << 20;
};

}  // namespace troika
