#include <troika/rpc/call_threads.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace troika::detail {

struct CallThreads::Idle {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t waiting = 0;                 // threads that have no job
  std::deque<std::function<void()>> jobs;  // at most as many as threads wait
  bool ended = false;

  // Carries out jobs until the end.
  void work(std::function<void()> job) {
    while (job) {
      job();
      job = nullptr;  // what it owns goes now
      std::unique_lock lock(mutex);
      ++waiting;
      changed.wait(lock, [this] { return ended || !jobs.empty(); });
      --waiting;
      if (jobs.empty()) return;
      job = std::move(jobs.front());
      jobs.pop_front();
    }
  }
};

CallThreads::CallThreads() : idle_(std::make_shared<Idle>()) {}

CallThreads::~CallThreads() {
  const std::lock_guard lock(idle_->mutex);
  idle_->ended = true;
  idle_->changed.notify_all();
}

void CallThreads::run(std::function<void()> job) {
  {
    const std::lock_guard lock(idle_->mutex);
    if (idle_->waiting > idle_->jobs.size()) {
      idle_->jobs.push_back(std::move(job));
      idle_->changed.notify_one();
      return;
    }
  }
  std::thread([idle = idle_, job = std::move(job)] { idle->work(job); }).detach();
}

}  // namespace troika::detail
