#include <troika/storage/arrow/retries.h>

#include <chrono>

namespace troika::store_plugin {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The time at which the request of this thread failed first.
double& first_failure() {
  thread_local double time = 0;
  return time;
}

}  // namespace

Patience& Patience::instance() {
  static Patience* const patience = new Patience();  // outlives what ends at exit
  return *patience;
}

void Patience::set(double seconds, const TakeText& warning) {
  const std::scoped_lock lock(mutex_);
  seconds_ = seconds;
  warning_ = warning;
}

void Patience::note_answer() {
  const std::scoped_lock lock(mutex_);
  has_answered_ = true;
}

bool Patience::allows(double waited, bool may_pass, const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (!may_pass || waited >= seconds_) return false;
  // A name that was never found is a wrong one; later the network's names may be gone for a while.
  const bool is_unknown_name = reason.find("resolve host") != std::string::npos;
  if (is_unknown_name && !has_answered_) return false;
  // That a busy store refuses once is nothing to tell.
  constexpr double kShort = 1;
  if (waited >= kShort && notice_.begins(now()) && warning_) warning_(reason);
  return true;
}

double Patience::pause(std::int64_t retries, double waited) const {
  const std::scoped_lock lock(mutex_);
  return retry_pause(retries, waited, seconds_);
}

bool PatientRetries::ShouldRetry(const AWSErrorDetail& error, std::int64_t retries) {
  if (attempts_ == Attempts::kOne) return false;
  if (retries == 0) first_failure() = now();
  return Patience::instance().allows(now() - first_failure(), error.should_retry, error.message);
}

std::int64_t PatientRetries::CalculateDelayBeforeNextRetry(const AWSErrorDetail&,
                                                           std::int64_t retries) {
  constexpr double kMilliseconds = 1000;
  return static_cast<std::int64_t>(kMilliseconds *
                                   Patience::instance().pause(retries, now() - first_failure()));
}

}  // namespace troika::store_plugin
