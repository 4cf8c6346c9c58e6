#include <troika/comm/mpi/backoff.h>

#include <sched.h>

#include <thread>

namespace troika::mpi {

void Backoff::pause() {
  ++rounds_;
  if (rounds_ < kSpins) return;
  if (rounds_ < kSpins + kYields || Clock::now() - start_ < kUntilNaps) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace troika::mpi
