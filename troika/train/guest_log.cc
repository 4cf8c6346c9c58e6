#include <troika/observe/log.h>
#include <troika/train/guest_log.h>

#include <algorithm>
#include <utility>

namespace troika {

GuestLog::GuestLog(std::string coordinator, std::function<bool()> leaves)
    : coordinator_(std::move(coordinator)), leaves_(std::move(leaves)) {}

void GuestLog::joined() const {
  log_info("joined the job of " + coordinator_);
}

std::string GuestLog::passes_text() const {
  return "passes trained here: " + std::to_string(passes_);
}

void GuestLog::passed(std::int64_t step) {
  ++passes_;
  step_ = step;
  if (Clock::now() < next_) return;
  log_info("at step " + std::to_string(step_) + "; " + passes_text());
  between_ = std::min(between_ * 2, Seconds(60));
  next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(between_);
}

void GuestLog::ended() const {
  const std::string last = passes_ == 0 ? "" : ", the last of step " + std::to_string(step_);
  if (leaves_()) {
    log_info("left the job behind step " + std::to_string(step_) + "; " + passes_text());
  } else {
    log_info("the job is finished; " + passes_text() + last);
  }
}

}  // namespace troika
