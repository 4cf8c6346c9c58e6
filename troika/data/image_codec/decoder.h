// Internal: one image that is decoded step by step. A step that fails returns false and has kept
// the reason.
#pragma once

#include <troika/data/image_codec/plugin.h>

#include <cstdint>

namespace troika::image_plugin {

// Returns the brightness of a colour: ITU-R BT.601, in 16 bits of fixed point.
[[nodiscard]] inline std::uint8_t brightness(unsigned red, unsigned green, unsigned blue) {
  return static_cast<std::uint8_t>((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16);
}

// Writes a pixel in the colour that is asked for, and returns the place of the next one.
inline std::uint8_t* put_pixel(std::uint8_t* out, Color color, unsigned red, unsigned green,
                               unsigned blue) {
  if (color == Color::kGray) {
    *out = brightness(red, green, blue);
    return out + 1;
  }
  out[0] = static_cast<std::uint8_t>(red);
  out[1] = static_cast<std::uint8_t>(green);
  out[2] = static_cast<std::uint8_t>(blue);
  out[3] = 255;
  return out + 4;
}

// Both decode all of an image, or say why they cannot. `error` gets a clause: "is ...".
[[nodiscard]] bool decode_jpeg(std::span<const std::byte> bytes, Color color, Receiver& receiver,
                               const TakeText& error);
[[nodiscard]] bool decode_png(std::span<const std::byte> bytes, Color color, Receiver& receiver,
                              const TakeText& error);

// Returns whether an image of this size is decoded. Tells `error` where it is too large.
[[nodiscard]] bool is_allowed(PixelSize size, const TakeText& error);

}  // namespace troika::image_plugin
