// Injects a hang, to test what everything else reports. This process stops, as `kill -STOP` stops
// it, where it would enter the named operation. `kill -CONT` continues it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

namespace troika {

class FaultInjector {
 public:
  // Parses `text`, the value of the variable TROIKA_STOP_AT. "2:gradient bucket 1* on axis data" is
  // the first operation of rank 2 that errors would call so. A * stands for any text, and ? and
  // [0-9] for one character, as in glob(7). Returns null for other ranks than `rank`. Throws
  // UsageError naming the variable for text of another form, and for a rank that the job, of `size`
  // ranks, does not have.
  [[nodiscard]] static std::unique_ptr<FaultInjector> parse(const std::string& text, int rank,
                                                            int size);
  // Logs a warning if no operation had that name.
  ~FaultInjector();
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  // Must be called before an operation starts. If it is the named one, returns only after the
  // process is continued. Any thread.
  void enter(std::string_view label, std::string_view axis);

 private:
  explicit FaultInjector(std::string pattern);

  std::string pattern_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace troika
