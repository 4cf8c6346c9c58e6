// Polls the abort store for reasons that no connection reports. Such are an abort by a member that
// no peer waits for, and a connection that ended when no peer was listening.
#pragma once

#include <troika/comm/failure/abort_store.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace troika {

class AbortWatcher {
 public:
  using OnAbort = std::function<void(int member, const Failure& reason)>;

  // Calls `on_abort` in a thread of its own, at most once. The abort store must outlive this.
  AbortWatcher(AbortStore& store, OnAbort on_abort);
  ~AbortWatcher();
  AbortWatcher(const AbortWatcher&) = delete;
  AbortWatcher& operator=(const AbortWatcher&) = delete;

  // Marks an operation that waits for others as under way, for as long as this lives.
  class ActiveOperation {
   public:
    explicit ActiveOperation(AbortWatcher& watcher) : watcher_(watcher) { ++watcher_.active_; }
    ~ActiveOperation() {
      ++watcher_.ended_;
      --watcher_.active_;
    }
    ActiveOperation(const ActiveOperation&) = delete;
    ActiveOperation& operator=(const ActiveOperation&) = delete;

   private:
    AbortWatcher& watcher_;
  };

 private:
  void poll_until_stopped(const OnAbort& on_abort);

  AbortStore& store_;
  std::atomic<int> active_ = 0;
  std::atomic<std::uint64_t> ended_ = 0;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by the mutex
  std::thread thread_;
};

}  // namespace troika
