// Programs written by hand.
#pragma once

#include <troika/schedule/schedule.h>

#include <utility>
#include <vector>

namespace troika::testing_support {

// Of two ranks with a stage each: what they compute; transfers are added.
inline Schedule two_ranks(std::vector<Program> programs, int microbatches = 2) {
  Schedule schedule;
  schedule.name = "mine";
  schedule.ranks = 2;
  schedule.microbatches = microbatches;
  schedule.rank_of_stage = {0, 1};
  schedule.programs = std::move(programs);
  add_transfers(schedule);
  return schedule;
}

}  // namespace troika::testing_support
