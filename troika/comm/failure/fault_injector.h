// Injects a hang: this process stops, as `kill -STOP` stops it, where it would enter an operation
// that has been named, so that everything else can be seen to tell of it. `kill -CONT` continues
// it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

namespace troika {

class FaultInjector {
 public:
  // `text` is that of the variable TROIKA_STOP_AT: "2:gradient bucket 1* on axis data" is the first
  // operation of rank 2 that errors would call so; * stands for any text, and ? and [0-9] for one
  // character, as in glob(7). Null for other ranks than `rank`. Throws UsageError naming the
  // variable for what is not of this form, and for a rank that the job, of `size` ranks, has not.
  [[nodiscard]] static std::unique_ptr<FaultInjector> parse(const std::string& text, int rank,
                                                            int size);
  // Says so where no operation was of that name.
  ~FaultInjector();
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  // An operation is about to start; does not return before the process continues, if it is the one.
  // Any thread.
  void enter(std::string_view label, std::string_view axis);

 private:
  explicit FaultInjector(std::string pattern);

  std::string pattern_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace troika
