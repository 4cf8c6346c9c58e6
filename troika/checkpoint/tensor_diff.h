// How the tensors of two files, or of two checkpoints, differ.
#pragma once

#include <troika/checkpoint/tensor_source.h>

#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Describes a tensor that both have.
struct TensorDifference {
  std::string name;
  double largest = 0;        // largest |a - b|; infinite where one has a NaN that the other has not
  double largest_value = 0;  // largest |a|
  std::string unlike = {};   // what is not alike: "[2, 3] and [3, 2]"; then nothing is compared
};

struct TensorDiff {
  std::vector<TensorDifference> differing;  // the largest difference first, of unlike ones before
  std::vector<std::string> only_in_a, only_in_b;
  std::size_t same = 0;  // tensors with the same values
  [[nodiscard]] bool is_same() const {
    return differing.empty() && only_in_a.empty() && only_in_b.empty();
  }
};

// Says what a tensor of a checkpoint belongs to, by its name.
enum class TensorOwner {
  kModel,
  kOptimizer,  // "optimizer.*"
  kDataRank    // "replica.*": running statistics
};
[[nodiscard]] TensorOwner owner_of(std::string_view name);

enum class DiffScope {
  kAll,
  kModel  // without what is of the optimiser or of a data rank
};

// Compares by value, whatever the types: a bf16 and an fp32 tensor of the same numbers are the
// same. Compares whole numbers exactly, others in fp64. One tensor of each is in memory at a time.
// Throws DataError naming a file that is damaged.
[[nodiscard]] TensorDiff compare_tensors(TensorSource& a, TensorSource& b,
                                         DiffScope scope = DiffScope::kAll);

}  // namespace troika
