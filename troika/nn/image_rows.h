// Internal: images in channels-last order as the rows of a matrix, a row for each pixel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troika::detail {

// Returns images [n, channels, height, width] as [n x height x width, channels].
[[nodiscard]] inline at::Tensor pixels_of(const at::Tensor& images) {
  return images.permute({0, 2, 3, 1}).reshape({-1, images.size(1)});
}

// The other way round.
[[nodiscard]] inline at::Tensor images_of(const at::Tensor& pixels, std::int64_t n,
                                          std::int64_t height, std::int64_t width) {
  return pixels.view({n, height, width, pixels.size(1)}).permute({0, 3, 1, 2});
}

}  // namespace troika::detail
