// Calls MPI in a thread when no other thread does. MPI moves messages only while it is called, and
// may report a message as sent before all of it has left. Open MPI over TCP keeps back the packet
// that ends a long message if the socket is full, MPICH the answer to one. A member whose operation
// has ended, and that now computes or waits for something else, would keep its peers waiting.
#pragma once

#include <troika/comm/mpi/plugin.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace troika::mpi {

class Progress {
 public:
  // Returns the Progress of this process, which lives while a caller holds it. MPI must have
  // started, for all threads.
  [[nodiscard]] static std::shared_ptr<Progress> of_process();
  explicit Progress(MpiPlugin& plugin);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Notes that a message has started.
  void started() noexcept {
    started_.fetch_add(1, std::memory_order_relaxed);
    if (idle_.load(std::memory_order_relaxed)) wake();
  }
  // Notes that a waiting thread has just called MPI, and will call it again.
  void driven() noexcept { driven_.fetch_add(1, std::memory_order_relaxed); }

 private:
  // The pause between two calls: the shortest after messages, then twice as long each time.
  static constexpr std::chrono::milliseconds kShortest{1};
  static constexpr std::chrono::milliseconds kLongest{64};

  void wake() noexcept;
  void drive_until_stopped();

  MpiPlugin& plugin_;
  std::atomic<std::uint64_t> started_ = 0;
  std::atomic<std::uint64_t> driven_ = 0;
  std::atomic<bool> idle_ = false;  // in a pause that a message ends
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by the mutex
  std::thread thread_;
};

}  // namespace troika::mpi
