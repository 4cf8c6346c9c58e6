// Shapes in messages.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace troika {

// Returns "[2, 3]".
[[nodiscard]] std::string shape_text(at::IntArrayRef shape);

}  // namespace troika
