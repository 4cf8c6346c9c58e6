#include <troika/comm/shm/patience.h>

namespace troika::shm {
namespace {

constexpr Seconds kYield(2e-3);
constexpr Party::Patience kCoreEach{.spin = Seconds(50e-6), .yield = kYield};
constexpr Party::Patience kSharedCores{.spin = Seconds(0), .yield = kYield};

}  // namespace

Party::Patience patience_of(int ranks, int cores) {
  return ranks <= cores ? kCoreEach : kSharedCores;
}

}  // namespace troika::shm
