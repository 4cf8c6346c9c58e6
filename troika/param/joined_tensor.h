// How tensors of a model stand in the files of other programs, which join several into one or store
// a matrix the other way round.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

namespace troika {

// A tensor of a foreign file.
struct JoinedTensor {
  std::string name;                // there
  std::vector<std::string> parts;  // ours, one behind the other along dimension 0
  bool transposed = false;         // it is a matrix [inputs, outputs]; ours are [outputs, inputs]
};

// Returns the foreign tensor that our parts make.
[[nodiscard]] at::Tensor join_parts(std::span<const at::Tensor> parts, bool transposed);
// Returns one of `count` parts of equal size of a foreign tensor, contiguous. Requires that it can
// be split so (is_splittable).
[[nodiscard]] at::Tensor part_of(const at::Tensor& joined, bool transposed, std::size_t part,
                                 std::size_t count);
[[nodiscard]] bool is_splittable(std::span<const std::int64_t> shape, bool transposed,
                                 std::size_t count);

}  // namespace troika
