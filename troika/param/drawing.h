// How initial values are drawn: some elements at a time, so that no copy of a large parameter lies
// beside it.
#pragma once

#include <cstdint>

namespace troika {

inline constexpr std::int64_t kDrawnAtOnce = std::int64_t{1} << 20;

}  // namespace troika
