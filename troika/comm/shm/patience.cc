#include <troika/comm/shm/patience.h>

namespace troika::shm {
namespace {

constexpr Party::Patience kCoreEach{.spin = Seconds(50e-6), .yield = Seconds(2e-3)};
constexpr Party::Patience kSharedCores{.spin = Seconds(0), .yield = Seconds(500e-6)};

}  // namespace

Party::Patience patience_of(int ranks, int cores) {
  return ranks <= cores ? kCoreEach : kSharedCores;
}

}  // namespace troika::shm
