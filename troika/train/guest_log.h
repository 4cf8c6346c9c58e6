// What a worker tells that joins a job on servers: the output of the job is the coordinator's.
#pragma once

#include <troika/base/time.h>

#include <cstdint>
#include <functional>
#include <string>

namespace troika {

class GuestLog {
 public:
  // `leaves` returns whether this worker has been asked to leave.
  GuestLog(std::string coordinator, std::function<bool()> leaves);

  void joined() const;
  // After a pass on samples of a step. Progress is told less often as time goes on.
  void passed(std::int64_t step);
  // After the last pass: says that the job is finished, unless this worker leaves it.
  void ended() const;

 private:
  [[nodiscard]] std::string passes_text() const;

  std::string coordinator_;
  std::function<bool()> leaves_;
  std::int64_t passes_ = 0, step_ = 0;
  Seconds between_{1};
  Clock::time_point next_ = {};
};

}  // namespace troika
