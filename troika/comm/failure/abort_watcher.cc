#include <troika/base/failure_timing.h>
#include <troika/comm/failure/abort_watcher.h>

#include <utility>

namespace troika {

AbortWatcher::AbortWatcher(AbortStore& store, OnAbort on_abort)
    : store_(store),
      thread_([this, on_abort = std::move(on_abort)] { poll_until_stopped(on_abort); }) {}

AbortWatcher::~AbortWatcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_.notify_one();
  }
  thread_.join();
}

void AbortWatcher::poll_until_stopped(const OnAbort& on_abort) {
  std::uint64_t ended = 0;
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, failure_timing::kAbortPoll, [this] { return stopping_; })) {
    // Where an operation has ended since the last look, or none is under way, nothing hangs: the
    // store of a large job is spared the question.
    if (std::exchange(ended, ended_) != ended_ || active_ == 0) continue;
    // Unlocked: the destructor must not wait for a store that does not answer before it can ask
    // this thread to stop.
    lock.unlock();
    if (const auto posted = store_.first()) return on_abort(posted->member, posted->reason);
    lock.lock();
  }
}

}  // namespace troika
