// The schedule `zb-v` (Qi et al. 2024).
#include <troika/schedule/generators.h>

#include <algorithm>
#include <array>

namespace troika::detail {
namespace {

// Writes the actions of one rank, each virtual stage's microbatches in ascending order.
// Microbatches that only fill up the pattern are counted and left out.
class ProgramWriter {
 public:
  ProgramWriter(const ScheduleShape& shape, int rank) : shape_(shape), rank_(rank) {}

  void forward(int virtual_stage) {
    add(ActionKind::kForward, virtual_stage, forwards_.at(virtual_stage));
  }
  void input(int virtual_stage) {
    add(ActionKind::kBackwardInput, virtual_stage, inputs_.at(virtual_stage));
  }
  void weight(int virtual_stage) {
    add(ActionKind::kBackwardWeight, virtual_stage, weights_.at(virtual_stage));
  }
  // Both gradients.
  void backward(int virtual_stage) {
    input(virtual_stage);
    weight(virtual_stage);
  }
  [[nodiscard]] int forwards(int virtual_stage) const { return forwards_.at(virtual_stage); }
  [[nodiscard]] int weights(int virtual_stage) const { return weights_.at(virtual_stage); }
  [[nodiscard]] Program take() { return std::move(program_); }

 private:
  void add(ActionKind kind, int virtual_stage, int& microbatch) {
    const int stage = virtual_stage == 0 ? rank_ : 2 * shape_.ranks - 1 - rank_;
    if (microbatch < shape_.microbatches) program_.push_back({kind, stage, microbatch});
    ++microbatch;
  }

  const ScheduleShape& shape_;
  int rank_;
  Program program_;
  std::array<int, 2> forwards_{};
  std::array<int, 2> inputs_{};
  std::array<int, 2> weights_{};
};

}  // namespace

// With F = B = W a rank is busy from its first action to its last: rank r starts at time r.
// 1. The first microbatch is back on virtual stage 1 after 2 (p - r) - 1 forwards of virtual stage
// 0, and its
//    gradient comes 2 r + 1 actions later: so many forwards of both virtual stages in turn.
// 2. Its gradient then goes down virtual stage 1 and comes up virtual stage 0; meanwhile p - r
// microbatches do
//    forward and backward of virtual stage 1.
// 3. Then both virtual stages have forward and backward in turn: 2 p activations of a virtual stage
// are alive,
//    which are p microbatches.
// 4. As forwards run out, gradients of inputs go first, and what depends on no other rank fills the
// end. The pattern needs 2 p - 1 microbatches. With fewer it is that of 2 p - 1, of which the
// missing microbatches are left out: each rank keeps its order, and just waits where they would
// have been.
Program zero_bubble_v(const ScheduleShape& shape, int rank) {
  const int ranks = shape.ranks;
  const int microbatches = std::max(shape.microbatches, 2 * ranks - 1);
  ProgramWriter to(shape, rank);
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) to.forward(0);
  for (int i = 0; i < rank; ++i) {
    to.forward(1);
    to.forward(0);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    to.forward(1);
    to.backward(1);
  }
  while (to.forwards(1) < microbatches) {
    if (to.forwards(0) < microbatches) to.forward(0);
    to.backward(0);
    to.forward(1);
    to.backward(1);
  }
  for (int i = 0; i < rank; ++i) {
    to.input(0);
    to.input(1);
  }
  for (int i = 0; i < ranks - rank; ++i) to.backward(0);
  for (const int virtual_stage : {1, 0}) {
    while (to.weights(virtual_stage) < microbatches) to.weight(virtual_stage);
  }
  return to.take();
}

}  // namespace troika::detail
