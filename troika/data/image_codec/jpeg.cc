// libjpeg reports errors by calling a function that must not return. It jumps back to the step that
// called libjpeg: the frames that it leaves out are libjpeg's and those of step functions, which
// hold nothing that has to be destroyed.
#include <troika/data/image_codec/decoder.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <string>
#include <vector>

#include <jpeglib.h>

#include <jerror.h>

#ifndef JCS_EXTENSIONS
#error "The plug-in for images needs libjpeg-turbo"
#endif

namespace troika::image_plugin {
namespace {

// A progressive image can have any number of passes over all of its pixels.
constexpr int kMostScans = 500;

// What a decoder that goes on would make up pixels for.
bool loses_pixels(int warning) {
  switch (warning) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
    case JWRN_NOT_SEQUENTIAL:
      return true;
    default:  // bytes between markers, say
      return false;
  }
}

class JpegDecoder {
 public:
  JpegDecoder(std::span<const std::byte> bytes, Color color) : bytes_(bytes), color_(color) {
    info_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = fail;
    errors_.manager.emit_message = [](j_common_ptr info, int level) {
      if (level < 0 && loses_pixels(info->err->msg_code)) fail(info);
    };
    errors_.manager.output_message = [](j_common_ptr) {};
    progress_.progress_monitor = [](j_common_ptr info) {
      if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMostScans) return;
      Errors& errors = errors_of(info);
      std::snprintf(errors.text, sizeof(errors.text), "it has more than %d scans", kMostScans);
      std::longjmp(errors.place, 1);  // NOLINT(cert-err52-cpp)
    };
  }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&info_); }

  // NOLINTBEGIN(cert-err52-cpp): libjpeg has no other way to report an error.
  [[nodiscard]] bool read_header() {
    if (setjmp(errors_.place) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes_.data()),
                 static_cast<unsigned long>(bytes_.size()));
    jpeg_read_header(&info_, TRUE);
    return true;
  }

  [[nodiscard]] PixelSize full_size() const { return {info_.image_width, info_.image_height}; }

  // Requires read_header().
  [[nodiscard]] bool start(int shrunk) {
    if (setjmp(errors_.place) != 0) return false;
    info_.scale_num = 1;
    info_.scale_denom = static_cast<unsigned>(shrunk);
    info_.out_color_space = out_space();
    jpeg_start_decompress(&info_);
    return true;
  }

  // Requires start().
  [[nodiscard]] PixelSize size() const { return {info_.output_width, info_.output_height}; }

  // Writes all rows. Requires start().
  [[nodiscard]] bool read(std::uint8_t* out) {
    if (is_ink()) ink_.resize(std::size_t{4} * info_.output_width);
    if (setjmp(errors_.place) != 0) return false;
    read_rows(out);
    jpeg_finish_decompress(&info_);
    return true;
  }
  // NOLINTEND(cert-err52-cpp)

  [[nodiscard]] std::string reason() const { return errors_.text; }

 private:
  struct Errors {
    jpeg_error_mgr manager;  // the first member: libjpeg passes its address
    std::jmp_buf place;
    char text[JMSG_LENGTH_MAX] = "";
  };

  static Errors& errors_of(j_common_ptr info) { return *reinterpret_cast<Errors*>(info->err); }

  [[noreturn]] static void fail(j_common_ptr info) {
    Errors& errors = errors_of(info);
    info->err->format_message(info, errors.text);
    std::longjmp(errors.place, 1);  // NOLINT(cert-err52-cpp)
  }

  // Whether it has the four inks of printing.
  [[nodiscard]] bool is_ink() const {
    return info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
  }
  [[nodiscard]] J_COLOR_SPACE out_space() const {
    if (is_ink()) return JCS_CMYK;
    return color_ == Color::kGray ? JCS_GRAYSCALE : JCS_EXT_RGBX;
  }

  void read_rows(std::uint8_t* out) {
    const std::int64_t stride = bytes_per_pixel(color_) * info_.output_width;
    while (info_.output_scanline < info_.output_height) {
      std::uint8_t* const row = out + stride * info_.output_scanline;
      JSAMPROW target = is_ink() ? ink_.data() : row;
      jpeg_read_scanlines(&info_, &target, 1);
      if (is_ink()) print(row);
    }
  }

  // Adobe's programs store how much light is left instead of how much ink there is.
  void print(std::uint8_t* out) const {
    const unsigned flip = info_.saw_Adobe_marker != 0 ? 0 : 255;
    for (std::size_t i = 0; i < ink_.size(); i += 4) {
      const unsigned black = ink_[i + 3] ^ flip;
      const auto light = [&](std::size_t ink) {
        return ((ink_[i + ink] ^ flip) * black + 127) / 255;
      };
      out = put_pixel(out, color_, light(0), light(1), light(2));
    }
  }

  std::span<const std::byte> bytes_;
  Color color_;
  Errors errors_;
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct info_{};
  std::vector<std::uint8_t> ink_;
};

// How much smaller it can be decoded. libjpeg rounds sides up.
int shrunk_for(PixelSize full, PixelSize least) {
  int shrunk = 8;
  while (shrunk > 1 && (full.width < least.width * shrunk || full.height < least.height * shrunk)) {
    shrunk /= 2;
  }
  return shrunk;
}

}  // namespace

bool decode_jpeg(std::span<const std::byte> bytes, Color color, Receiver& receiver,
                 const TakeText& error) {
  JpegDecoder decoder(bytes, color);
  const auto damaged = [&] {
    error("is a damaged JPEG image: " + decoder.reason());
    return false;
  };
  if (!decoder.read_header()) return damaged();
  if (!is_allowed(decoder.full_size(), error)) return false;
  const PixelSize least = receiver.least_size(decoder.full_size());
  if (least == PixelSize()) return true;
  const int shrunk = shrunk_for(decoder.full_size(), least);
  if (!decoder.start(shrunk)) return damaged();
  return decoder.read(receiver.rows(decoder.size(), shrunk)) || damaged();
}

}  // namespace troika::image_plugin
