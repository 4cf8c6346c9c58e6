// Internal: what troika takes of libjpeg-turbo and libpng, which are a plug-in: a run that reads no
// images does not load them. No type of theirs passes, and none of their errors crosses a frame
// that has something to destroy.
#pragma once

#include <troika/data/images/image_color.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace troika::image_plugin {

// Receives a message in a call, as the two sides may have different allocators. What it is given
// lasts until it returns.
using TakeText = std::function<void(std::string_view)>;

using Color = ImageColor;

// The most pixels of an image that is decoded: 256 MiB of memory in colour. A header that says more
// is refused before any memory is taken for it.
inline constexpr std::int64_t kMostPixels = std::int64_t{1} << 26;

// Bytes of a decoded pixel: red, green, blue and one that has no meaning; or its brightness.
[[nodiscard]] constexpr std::int64_t bytes_per_pixel(Color color) {
  return color == Color::kRgb ? 4 : 1;
}

// Takes a decoded image.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // Hears the size that the header says. Returns the smallest size to decode to: a JPEG image is
  // shrunk by 2, 4 or 8 as long as neither side gets smaller than that. A size of 0 asks for the
  // header alone: nothing is decoded then.
  [[nodiscard]] virtual PixelSize least_size(PixelSize full) = 0;
  // Returns memory for the image, one row after the other. `shrunk` is 1, 2, 4 or 8; a side of the
  // decoded size is the full one divided by it, rounded up.
  [[nodiscard]] virtual std::uint8_t* rows(PixelSize decoded, int shrunk) = 0;
};

// Thread safe.
class ImagePlugin {
 public:
  virtual ~ImagePlugin() = default;
  // Decodes a JPEG or PNG image, known by its first bytes, to eight bits a channel. Samples of 16
  // bits are scaled, palettes looked up, alpha left out; CMYK is taken as ink on white paper.
  // Grey becomes colour and colour grey as asked. Returns false, having passed the reason to
  // `error`, for anything else, and where the image is damaged or not whole: "is a damaged JPEG
  // image: Premature end of JPEG file".
  [[nodiscard]] virtual bool decode(std::span<const std::byte> bytes, Color color,
                                    Receiver& receiver, const TakeText& error) const = 0;
};

inline constexpr const char* kFile = "libtroika_image_codec.so";
using PluginEntry = const ImagePlugin* (*)();
inline constexpr const char* kPluginEntry = "troika_image_codec_plugin";

}  // namespace troika::image_plugin
