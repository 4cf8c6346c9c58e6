// Runs operations that block, so that their callers need not. They run in a thread of its own, or
// in that of a caller that waits for one, if it comes first. That caller then runs the operations
// before it, too. This saves two changes of thread where nothing is overlapped.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/group.h>

#include <functional>
#include <memory>

namespace troika {

class WorkQueue {
 public:
  enum class Order {
    kAsAdded,     // one at a time; operations must not overtake each other
    kIndependent  // a thread that waits for an operation runs it at once
  };

  // The time at which the queue's thread takes an operation that no caller waits for.
  enum class Start {
    kAtOnce,
    kSoon  // within kSoon, so that short ones are left to threads that wait for them
  };

  static constexpr Seconds kSoon{2e-3};

  // An operation. `run` blocks until it is over, by failure_timing::kDiagnosis after its deadline,
  // and throws the error that the user gets. `overdue` makes that error when the deadline passes
  // before `run` was even reached, since an earlier operation hangs. It must ensure that nothing
  // hangs any longer.
  struct Job {
    Deadline deadline;
    std::function<void()> run;
    std::function<std::exception_ptr()> overdue;
    Start start = Start::kAtOnce;
    // The latest deadline of other operations that `run` waits for, if later than its own: a
    // waiting caller is not held up by them.
    Clock::time_point latest = Clock::time_point::min();
  };

  explicit WorkQueue(Order order);
  // Waits for the operations under way.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Adds a job. Thread-safe. The Work may outlive the queue.
  [[nodiscard]] Work add(Job job);

 private:
  struct State;
  class Task;
  std::shared_ptr<State> state_;
};

}  // namespace troika
