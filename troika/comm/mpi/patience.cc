#include <troika/comm/mpi/patience.h>

#include <sched.h>

#include <thread>

namespace troika::mpi {

void Patience::pause() {
  ++rounds_;
  if (rounds_ < kSpins) return;
  if (rounds_ < kSpins + kYields || Clock::now() - start_ < kUntilNaps) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace troika::mpi
