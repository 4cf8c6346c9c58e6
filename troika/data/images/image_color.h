// Words for images that the plug-in that decodes them shares with what uses it.
#pragma once

#include <cstdint>

namespace troika {

// The channels of an image: three, or the brightness alone.
enum class ImageColor { kRgb, kGray };

struct PixelSize {
  std::int64_t width = 0, height = 0;

  bool operator==(const PixelSize&) const = default;
};

}  // namespace troika
