// How far a job has come over its starts, which launchers tell each other and decide restarts by.
#pragma once

#include <cstdint>

namespace troika {

// The progress of a job, as its files say.
struct JobProgress {
  std::int64_t step = 0;        // the last that any start of it has taken
  std::int64_t checkpoint = 0;  // the step that the next start goes on from; 0: from the first
};

// The starts of a job before this one.
struct JobHistory {
  int restarts = 0;             // this start's number; 0 is the first
  std::int64_t reached = -1;    // the last step of the start before
  std::int64_t checkpoint = 0;  // that this start goes on from
};

}  // namespace troika
