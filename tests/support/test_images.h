// JPEG and PNG files as tests need them, written by libjpeg and libpng.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troika::test {

// Rows of pixels, each of `channels` numbers in [0, 255].
struct TestImage {
  int width = 0, height = 0, channels = 3;
  std::vector<std::uint8_t> pixels;
};

// Returns an image whose channels are smooth and differ from place to place.
[[nodiscard]] TestImage smooth_image(int width, int height, int channels, int seed = 0);
// Returns an image of one colour.
[[nodiscard]] TestImage plain_image(int width, int height, const std::vector<std::uint8_t>& color);

struct PngStyle {
  int depth = 8;  // 16: the same values times 257
  bool interlaced = false;
  bool palette = false;  // each value of a channel becomes a colour of its own: {v, 255 - v, v / 2}
};
// Writes 1 (grey), 2 (with alpha), 3 (colour) or 4 channels.
[[nodiscard]] std::string png_of(const TestImage& image, const PngStyle& style = {});

enum class Ink { kAdobe, kPlain };
struct JpegStyle {
  bool progressive = false;
  Ink ink = Ink::kAdobe;  // of 4 channels: as Adobe's programs have it, or as the standard does
};
// Writes 1, 3 or 4 channels at quality 95, without subsampling.
[[nodiscard]] std::string jpeg_of(const TestImage& image, const JpegStyle& style = {});

}  // namespace troika::test
