// The schedule `interleaved` (Narayanan et al. 2021).
#include <troika/schedule/generators.h>

#include <algorithm>

namespace troika::detail {
namespace {

// The order in which a rank goes through its virtual stages: a group of as many microbatches as
// there are ranks passes all virtual stages, then the next group. Turn k is one virtual stage of
// one microbatch.
struct Turns {
  const ScheduleShape& shape;
  int rank;

  // With the last group filled up.
  [[nodiscard]] int count() const {
    const int groups = (shape.microbatches + shape.ranks - 1) / shape.ranks;
    return groups * shape.ranks * shape.virtual_stages;
  }
  void add(Program& program, ActionKind kind, int turn) const {
    const int group = turn / (shape.ranks * shape.virtual_stages);
    const int inside = turn % (shape.ranks * shape.virtual_stages);
    const int microbatch = group * shape.ranks + inside % shape.ranks;
    if (microbatch >= shape.microbatches) return;  // one that only fills up the last group
    const int place = inside / shape.ranks;
    const int virtual_stage =
        kind == ActionKind::kForward ? place : shape.virtual_stages - 1 - place;
    program.push_back({kind, virtual_stage * shape.ranks + rank, microbatch});
  }
};

}  // namespace

Program interleaved(const ScheduleShape& shape, int rank) {
  if (shape.virtual_stages == 1) return one_forward_one_backward(shape, rank);
  const Turns turns{shape, rank};
  const int count = turns.count();
  const int warmup =
      std::min(count, 2 * (shape.ranks - 1 - rank) + (shape.virtual_stages - 1) * shape.ranks);
  Program program;
  for (int turn = 0; turn < warmup; ++turn) turns.add(program, ActionKind::kForward, turn);
  for (int turn = 0; turn < count; ++turn) {
    if (warmup + turn < count) turns.add(program, ActionKind::kForward, warmup + turn);
    turns.add(program, ActionKind::kBackward, turn);
  }
  return program;
}

}  // namespace troika::detail
