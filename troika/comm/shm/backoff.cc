#include <troika/comm/shm/backoff.h>

namespace troika::shm {
namespace {

constexpr Seconds kYield(2e-3);
constexpr ShmGroup::Backoff kCoreEach{.spin = Seconds(50e-6), .yield = kYield};
constexpr ShmGroup::Backoff kSharedCores{.spin = Seconds(0), .yield = kYield};

}  // namespace

ShmGroup::Backoff backoff_for(int ranks, int cores) {
  return ranks <= cores ? kCoreEach : kSharedCores;
}

}  // namespace troika::shm
