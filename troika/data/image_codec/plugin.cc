#include <troika/data/image_codec/decoder.h>

#include <cstring>
#include <string>

namespace troika::image_plugin {

bool is_allowed(PixelSize size, const TakeText& error) {
  // Both formats have sides of 31 bits at most: the product fits.
  if (size.width > 0 && size.height > 0 && size.width * size.height <= kMostPixels) return true;
  error("has " + std::to_string(size.width) + " x " + std::to_string(size.height) +
        " pixels; at most " + std::to_string(kMostPixels) + " are decoded");
  return false;
}

namespace {

bool begins_with(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

class Codec final : public ImagePlugin {
 public:
  [[nodiscard]] bool decode(std::span<const std::byte> bytes, Color color, Receiver& receiver,
                            const TakeText& error) const override {
    if (begins_with(bytes, "\xFF\xD8\xFF")) return decode_jpeg(bytes, color, receiver, error);
    if (begins_with(bytes, "\x89PNG\r\n\x1A\n")) return decode_png(bytes, color, receiver, error);
    error(bytes.empty() ? "is empty" : "is no JPEG or PNG image");
    return false;
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ImagePlugin* troika_image_codec_plugin() {
  static const Codec kCodec;
  return &kCodec;
}

}  // namespace troika::image_plugin
