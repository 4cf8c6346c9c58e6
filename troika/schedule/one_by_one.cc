// Schedules that go through microbatches one by one: all forwards first, or in turn with backwards.
#include <troika/schedule/generators.h>

namespace troika::detail {
namespace {

// `warmup` forwards, then a forward and a backward in turn, then the backwards that are left.
// `backward(program, i)` adds that of microbatch i.
template <class Backward>
Program in_turn(const ScheduleShape& shape, int stage, int warmup, Backward backward) {
  Program program;
  int forwards = 0;
  const auto forward = [&] {
    if (forwards < shape.microbatches) program.push_back({ActionKind::kForward, stage, forwards++});
  };
  for (int i = 0; i < warmup; ++i) forward();
  for (int i = 0; i < shape.microbatches; ++i) {
    forward();
    backward(program, i);
  }
  return program;
}

// Weight gradients follow `lag` microbatches behind the gradients of the input.
Program zero_bubble(const ScheduleShape& shape, int stage, int warmup, int lag) {
  int weights = 0;
  Program program = in_turn(shape, stage, warmup, [&](Program& to, int i) {
    to.push_back({ActionKind::kBackwardInput, stage, i});
    if (i >= lag) to.push_back({ActionKind::kBackwardWeight, stage, weights++});
  });
  while (weights < shape.microbatches) {
    program.push_back({ActionKind::kBackwardWeight, stage, weights++});
  }
  return program;
}

}  // namespace

Program gpipe(const ScheduleShape& shape, int rank) {
  Program program;
  for (int virtual_stage = 0; virtual_stage < shape.virtual_stages; ++virtual_stage) {
    for (int i = 0; i < shape.microbatches; ++i) {
      program.push_back({ActionKind::kForward, virtual_stage * shape.ranks + rank, i});
    }
  }
  for (int virtual_stage = shape.virtual_stages; virtual_stage-- > 0;) {
    for (int i = 0; i < shape.microbatches; ++i) {
      program.push_back({ActionKind::kBackward, virtual_stage * shape.ranks + rank, i});
    }
  }
  return program;
}

Program one_forward_one_backward(const ScheduleShape& shape, int rank) {
  return in_turn(shape, rank, shape.ranks - 1 - rank, [rank](Program& to, int i) {
    to.push_back({ActionKind::kBackward, rank, i});
  });
}

Program eager_one_forward_one_backward(const ScheduleShape& shape, int rank) {
  return in_turn(shape, rank, 2 * (shape.ranks - 1 - rank), [rank](Program& to, int i) {
    to.push_back({ActionKind::kBackward, rank, i});
  });
}

Program zero_bubble_h1(const ScheduleShape& shape, int rank) {
  return zero_bubble(shape, rank, shape.ranks - 1 - rank, rank);
}

Program zero_bubble_h2(const ScheduleShape& shape, int rank) {
  return zero_bubble(shape, rank, 2 * (shape.ranks - 1 - rank), 2 * rank);
}

}  // namespace troika::detail
