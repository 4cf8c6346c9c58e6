#include <troika/comm/reason_watch.h>

#include <utility>

namespace troika {

ReasonWatch::ReasonWatch(ReasonBoard& board, Heard heard)
    : board_(board), thread_([this, heard = std::move(heard)] { look_until_stopped(heard); }) {}

ReasonWatch::~ReasonWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_.notify_one();
  }
  thread_.join();
}

void ReasonWatch::look_until_stopped(const Heard& heard) {
  std::uint64_t ended = 0;
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kInterval, [this] { return stopping_; })) {
    if (std::exchange(ended, ended_) != ended_ || under_way_ == 0) continue;
    lock.unlock();
    if (const auto posted = board_.first()) return heard(posted->member, posted->reason);
    lock.lock();
  }
}

}  // namespace troika
