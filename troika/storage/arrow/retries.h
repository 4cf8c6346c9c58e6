// Internal: when a request to an object store that has failed is made again.
#pragma once

#include <arrow/filesystem/s3fs.h>
#include <troika/storage/outage.h>
#include <troika/storage/store_plugin.h>

#include <cstdint>
#include <mutex>
#include <string>

namespace troika::store_plugin {

// The patience of this process with its stores: how long a failing request is made again, and who
// is told. Thread safe.
class Patience {
 public:
  [[nodiscard]] static Patience& instance();

  void set(double seconds, const TakeText& warning);
  // Records that a store has answered, so that its name is right.
  void note_answer();
  // Returns whether to make a request again that has failed for `waited` seconds, with this reason.
  [[nodiscard]] bool allows(double waited, bool may_pass, const std::string& reason);
  // Returns the seconds to wait after `retries` retries, at most until the time is over.
  [[nodiscard]] double pause(std::int64_t retries, double waited) const;

 private:
  mutable std::mutex mutex_;
  double seconds_ = kFewSeconds;
  TakeText warning_;
  OutageNotice notice_;
  bool has_answered_ = false;
};

// Makes S3's requests once, or again for as long as the patience of this process lasts. Arrow calls
// it on the thread of the request; each request is of one thread.
class PatientRetries final : public arrow::fs::S3RetryStrategy {
 public:
  explicit PatientRetries(Attempts attempts) : attempts_(attempts) {}

  bool ShouldRetry(const AWSErrorDetail& error, std::int64_t retries) override;
  std::int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail& error,
                                             std::int64_t retries) override;

 private:
  Attempts attempts_;
};

}  // namespace troika::store_plugin
