// Fuzz target: the plug-in for images decodes any file inside its bytes, or refuses it with a
// reason.
#include <fuzz/fuzz.h>
#include <troika/data/image_codec/decoder.h>
#include <troika/data/image_codec/plugin.h>

#include <numeric>
#include <vector>

namespace troika::image_plugin {

extern "C" const ImagePlugin* troika_image_codec_plugin();

namespace {

// Holds the decoded image, and reads all of it: the address sanitizer watches.
class Image final : public Receiver {
 public:
  Image(Color color, PixelSize least) : color_(color), least_(least) {}

  [[nodiscard]] PixelSize least_size(PixelSize full) override {
    require(full.width * full.height <= kMostPixels, "a size is allowed");
    full_ = full;
    return least_;
  }
  [[nodiscard]] std::uint8_t* rows(PixelSize decoded, int shrunk) override {
    require(decoded.width == (full_.width + shrunk - 1) / shrunk &&
                decoded.height == (full_.height + shrunk - 1) / shrunk,
            "sides are divided and rounded up");
    pixels_.resize(
        static_cast<std::size_t>(decoded.width * decoded.height * bytes_per_pixel(color_)));
    return pixels_.data();
  }
  [[nodiscard]] int sum() const { return std::accumulate(pixels_.begin(), pixels_.end(), 0); }

 private:
  Color color_;
  PixelSize least_, full_;
  std::vector<std::uint8_t> pixels_;
};

void run(std::span<const std::byte> file, Color color, PixelSize least) {
  Image image(color, least);
  bool told = false;
  const bool done =
      troika_image_codec_plugin()->decode(file, color, image, [&](std::string_view text) {
        require_one_line(text);
        require(text.starts_with("is ") || text.starts_with("has "), "a reason is a clause");
        told = true;
      });
  require(done != told, "an image is decoded or refused");
  static_cast<void>(image.sum());
}

}  // namespace
}  // namespace troika::image_plugin

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troika::image_plugin;
  const auto input = troika::as_span(data, size);
  run(input, Color::kRgb, {1 << 20, 1 << 20});
  run(input, Color::kGray, {2, 2});
  run(input, Color::kRgb, {});
  return 0;
}
