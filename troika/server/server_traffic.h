// The bytes that a worker exchanges with parameter servers.
#pragma once

#include <cstdint>

namespace troika {

// Counts the bytes that a worker has sent to servers and got from them: parameters, gradients, rows
// with their numbers, and the headers of these requests. What carries them (HTTP/2) is not counted.
struct ServerTraffic {
  std::uint64_t sent = 0, received = 0;
};

}  // namespace troika
