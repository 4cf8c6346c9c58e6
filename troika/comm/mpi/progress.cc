#include <troika/comm/mpi/library.h>
#include <troika/comm/mpi/progress.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace troika::mpi {
namespace {

// MPI must not be called once it ends, with the process. In the order of their use at exit.
std::mutex g_calling;
bool g_exiting = false;  // guarded by the mutex

void call_no_more() {
  const std::lock_guard lock(g_calling);
  g_exiting = true;
}

}  // namespace

std::shared_ptr<Progress> Progress::of_process() {
  static std::mutex mutex;
  static std::weak_ptr<Progress> shared;
  // After MPI has registered its own end, so that this comes before it.
  [[maybe_unused]] static const int registered = std::atexit(call_no_more);
  const std::lock_guard lock(mutex);
  auto progress = shared.lock();
  if (!progress) shared = progress = std::make_shared<Progress>(plugin());
  return progress;
}

Progress::Progress(MpiPlugin& plugin)
    : plugin_(plugin), thread_([this] { drive_until_stopped(); }) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void Progress::wake() noexcept {
  const std::lock_guard lock(mutex_);
  idle_ = false;
  changed_.notify_one();
}

void Progress::drive_until_stopped() {
  std::uint64_t started = 0, driven = 0;
  auto pause = kShortest;
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool idle = pause > kShortest;
    idle_ = idle;
    changed_.wait_for(lock, pause, [&] { return stopping_ || (idle && !idle_); });
    if (stopping_) return;
    pause =
        std::exchange(started, started_) != started_ ? kShortest : std::min(2 * pause, kLongest);
    // A thread that waits calls MPI itself, and this one need not.
    if (std::exchange(driven, driven_) != driven_) continue;
    lock.unlock();
    {
      // Held over the call: exit() of another thread waits in call_no_more() until this call has
      // returned.
      const std::lock_guard calling(g_calling);
      if (g_exiting || !plugin_.progress()) return;
    }
    lock.lock();
  }
}

}  // namespace troika::mpi
