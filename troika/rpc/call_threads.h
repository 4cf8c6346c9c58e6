// Internal: threads for calls that may never come back. gRPC cannot be made to give up a write to
// a peer that stands still, so a caller leaves such a call to its thread at its deadline.
#pragma once

#include <functional>
#include <memory>

namespace troika::detail {

// Runs each job on a thread of its own, at once. A thread that is done waits for another job, and
// ends with this object; one whose job lasts longer ends after that. Thread safe.
class CallThreads {
 public:
  CallThreads();
  ~CallThreads();
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  // The job must own all that it uses, and not throw. Throws std::system_error if there can be no
  // more threads.
  void run(std::function<void()> job);

 private:
  struct Idle;
  std::shared_ptr<Idle> idle_;
};

}  // namespace troika::detail
