// A tensor under its global name, as files and modules know it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace troika {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

}  // namespace troika
