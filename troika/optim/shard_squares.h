// Sums of squares of whole shards, by ATen's operators: what square_sum.h is for chunks in the
// host's memory.
#pragma once

#include <troika/device/device.h>
#include <troika/param/arena.h>

#include <span>
#include <vector>

namespace troika::detail {

// Returns the sum of squares of a tensor, as a number (0-dim) in fp64 on its device. Takes no
// memory for copies of the tensor.
[[nodiscard]] at::Tensor sum_of_squares(const at::Tensor& values);

// Returns the elements of `values` that norms count, of the arena's shard of this index.
[[nodiscard]] at::Tensor counted_part(const Arena& arena, std::size_t shard,
                                      const at::Tensor& values);

// The sums of squares, in fp64, of the elements of `values` that norms count. `values` has one
// tensor a shard, on the arena's device; an undefined one counts as zero.
class ShardSquares {
 public:
  // Queues the sums and their copy to the host. `arena` must outlive this.
  ShardSquares(const Arena& arena, std::span<const at::Tensor> values);
  // Waits, and returns a value for each of chunks_of(arena): a shard's sum at its first chunk, and
  // 0 at the others. Throws DeadlineError if the device does not come to it in time.
  [[nodiscard]] std::vector<double> by_chunk(const Deadline& deadline) const;

 private:
  const Arena& arena_;
  std::vector<std::size_t> shards_;  // of `sums_`
  at::Tensor sums_;                  // in the host's memory
  DeviceEvent copied_;
};

}  // namespace troika::detail
