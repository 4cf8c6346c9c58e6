// Resizes a part of a decoded image to floating-point planes, smoothed by a triangle as wide as the
// part of the image that becomes one pixel: what Pillow calls bilinear, and PyTorch bilinear with
// antialias = True. All arithmetic is in one order, without fused multiplications, hence the same
// bits on every machine.
#pragma once

#include <cstdint>
#include <span>

namespace troika {

// A rectangle in pixels of an image; its edges may lie inside of pixels.
struct ImageWindow {
  double x = 0, y = 0, width = 0, height = 0;
};

// Decoded pixels, rows one after the other. Those of colour have four bytes, the last unused.
struct PixelView {
  const std::uint8_t* data = nullptr;
  std::int64_t width = 0, height = 0;
  std::int64_t bytes = 4;  // of a pixel: 4 or 1
};

// Says what becomes of a value in [0, 255]: value * scale + shift, one a channel.
struct PixelScale {
  float scale[3] = {1, 1, 1};
  float shift[3] = {0, 0, 0};
};

enum class Mirror { kNo, kYes };

// Writes planes of `height` x `width` to `out`, three or one. Requires that the window lies within
// the image and is not empty.
void resample(const PixelView& image, const ImageWindow& window, std::int64_t height,
              std::int64_t width, Mirror mirror, const PixelScale& scale, float* out);

}  // namespace troika
