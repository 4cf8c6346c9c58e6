// libpng reports errors by calling a function that must not return. It jumps back to the step that
// called libpng: the frames that it leaves out are libpng's and those of step functions, which hold
// nothing that has to be destroyed.
#include <troika/data/image_codec/decoder.h>

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace troika::image_plugin {
namespace {

class PngDecoder {
 public:
  PngDecoder(std::span<const std::byte> bytes, Color color) : bytes_(bytes), color_(color) {}
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }

  // NOLINTBEGIN(cert-err52-cpp): libpng has no other way to report an error.
  [[nodiscard]] bool read_header() {
    if (setjmp(place_) != 0) return false;
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail,
                                  [](png_structp, png_const_charp) {});
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) return false;
    png_set_read_fn(png_, this, give);
    // The size is judged afterwards; other chunks than pixels are not kept.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
    return true;
  }

  [[nodiscard]] PixelSize size() const {
    return {png_get_image_width(png_, info_), png_get_image_height(png_, info_)};
  }

  // Has rows come as one to four channels of eight bits. Requires read_header().
  [[nodiscard]] bool start() {
    if (setjmp(place_) != 0) return false;
    png_set_expand(png_);
    png_set_scale_16(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  // Writes all rows. Requires start().
  [[nodiscard]] bool read(std::uint8_t* out) {
    const std::size_t row = png_get_rowbytes(png_, info_);
    const auto height = static_cast<std::size_t>(size().height);
    stored_.resize(passes_ > 1 ? row * height : row);  // passes fill each other's gaps
    if (setjmp(place_) != 0) return false;
    passes_ > 1 ? read_passes(out, row, height) : read_rows(out, height);
    png_read_end(png_, nullptr);
    return true;
  }
  // NOLINTEND(cert-err52-cpp)

  [[nodiscard]] std::string reason() const { return text_; }

 private:
  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::snprintf(self->text_, sizeof(self->text_), "%s", message);
    std::longjmp(self->place_, 1);  // NOLINT(cert-err52-cpp)
  }

  static void give(png_structp png, png_bytep out, std::size_t count) {
    auto* self = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (self->bytes_.size() < count) png_error(png, "the file ends too early");
    std::memcpy(out, self->bytes_.data(), count);
    self->bytes_ = self->bytes_.subspan(count);
  }

  void read_rows(std::uint8_t* out, std::size_t height) {
    for (std::size_t y = 0; y < height; ++y) {
      png_read_row(png_, stored_.data(), nullptr);
      out = convert(stored_.data(), out);
    }
  }

  void read_passes(std::uint8_t* out, std::size_t row, std::size_t height) {
    for (int pass = 0; pass < passes_; ++pass) {
      for (std::size_t y = 0; y < height; ++y) {
        png_read_row(png_, stored_.data() + y * row, nullptr);
      }
    }
    for (std::size_t y = 0; y < height; ++y) out = convert(stored_.data() + y * row, out);
  }

  // One channel or two are grey; a second or a fourth is alpha.
  std::uint8_t* convert(const std::uint8_t* in, std::uint8_t* out) const {
    const std::size_t channels = png_get_channels(png_, info_);
    const std::size_t width = png_get_image_width(png_, info_);
    const bool is_gray = channels < 3;
    for (std::size_t x = 0; x < width; ++x, in += channels) {
      out = put_pixel(out, color_, in[0], in[is_gray ? 0 : 1], in[is_gray ? 0 : 2]);
    }
    return out;
  }

  std::span<const std::byte> bytes_;  // what has not been read yet
  Color color_;
  std::jmp_buf place_;
  char text_[200] = "out of memory";
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
  std::vector<std::uint8_t> stored_;
};

}  // namespace

bool decode_png(std::span<const std::byte> bytes, Color color, Receiver& receiver,
                const TakeText& error) {
  PngDecoder decoder(bytes, color);
  const auto damaged = [&] {
    error("is a damaged PNG image: " + decoder.reason());
    return false;
  };
  if (!decoder.read_header()) return damaged();
  if (!is_allowed(decoder.size(), error)) return false;
  if (receiver.least_size(decoder.size()) == PixelSize()) return true;
  if (!decoder.start()) return damaged();
  return decoder.read(receiver.rows(decoder.size(), 1)) || damaged();
}

}  // namespace troika::image_plugin
