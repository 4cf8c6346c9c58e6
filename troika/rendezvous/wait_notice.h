// Logs what a job waits for, where that takes minutes.
#pragma once

#include <troika/base/failure_timing.h>
#include <troika/rendezvous/store.h>

#include <functional>
#include <string>
#include <vector>

namespace troika {

// The times at which the log says again what is being waited for: after 10 s, and then after twice
// as long each time, up to every two minutes.
class WaitNotice {
 public:
  explicit WaitNotice(const Deadline& deadline) : deadline_(deadline) {}

  // Returns the time of the next notice, or the end of the wait.
  [[nodiscard]] Deadline next() const;
  // Logs "waiting for WHAT (10 s of 300 s)" if it is time.
  void log_if_due(const std::function<std::string()>& what);

 private:
  Deadline deadline_;
  Seconds pause_ = failure_timing::kFirstNotice;
  Deadline due_ = Deadline::in(failure_timing::kFirstNotice);
};

// Waits as Store::wait() does, and logs what it waits for.
[[nodiscard]] bool wait_with_notice(Store& store, const std::vector<std::string>& keys,
                                    const Deadline& deadline,
                                    const std::function<std::string()>& what);

}  // namespace troika
