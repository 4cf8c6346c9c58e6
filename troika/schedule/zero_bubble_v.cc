#include <troika/schedule/generators.h>

#include <algorithm>
#include <array>

namespace troika::detail {
namespace {

// Writes the actions of one rank, each chunk's microbatches in ascending order. Microbatches that
// only fill up the pattern are counted and left out.
class Writer {
 public:
  Writer(const ScheduleShape& shape, int rank) : shape_(shape), rank_(rank) {}

  void forward(int chunk) { add(ActionKind::kForward, chunk, forwards_.at(chunk)); }
  void input(int chunk) { add(ActionKind::kBackwardInput, chunk, inputs_.at(chunk)); }
  void weight(int chunk) { add(ActionKind::kBackwardWeight, chunk, weights_.at(chunk)); }
  // Both gradients.
  void backward(int chunk) {
    input(chunk);
    weight(chunk);
  }
  [[nodiscard]] int forwards(int chunk) const { return forwards_.at(chunk); }
  [[nodiscard]] int weights(int chunk) const { return weights_.at(chunk); }
  [[nodiscard]] Program take() { return std::move(program_); }

 private:
  void add(ActionKind kind, int chunk, int& microbatch) {
    const int stage = chunk == 0 ? rank_ : 2 * shape_.ranks - 1 - rank_;
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
// 1. The first microbatch is back on chunk 1 after 2 (p - r) - 1 forwards of chunk 0, and its
//    gradient comes 2 r + 1 actions later: so many forwards of both chunks in turn.
// 2. Its gradient then goes down chunk 1 and comes up chunk 0; meanwhile p - r microbatches do
//    forward and backward of chunk 1.
// 3. Then both chunks have forward and backward in turn: 2 p activations of a chunk are alive,
//    which are p microbatches.
// 4. As forwards run out, gradients of inputs go first, and what waits for nobody fills the end.
// The pattern needs 2 p - 1 microbatches. With fewer it is that of 2 p - 1, of which the missing
// microbatches are left out: each rank keeps its order, and just waits where they would have been.
Program zero_bubble_v(const ScheduleShape& shape, int rank) {
  const int ranks = shape.ranks;
  const int microbatches = std::max(shape.microbatches, 2 * ranks - 1);
  Writer to(shape, rank);
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
  for (const int chunk : {1, 0}) {
    while (to.weights(chunk) < microbatches) to.weight(chunk);
  }
  return to.take();
}

}  // namespace troika::detail
