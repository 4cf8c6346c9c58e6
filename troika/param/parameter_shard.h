// The part of a parameter that the optimiser of one rank updates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

// The elements [begin, begin + tensor.numel()) of a parameter, row by row.
struct ParameterShard {
  std::string name;  // "stem.conv.weight"
  std::int64_t begin = 0;
  at::Tensor tensor;                     // flat, but for a parameter that a rank has whole
  std::vector<std::int64_t> shape = {};  // of the whole
};

}  // namespace troika
