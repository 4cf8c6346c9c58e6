#include <png.h>
#include <support/test_images.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

namespace troika::test {

TestImage smooth_image(int width, int height, int channels, int seed) {
  TestImage image{width, height, channels, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const double wave = std::sin(0.11 * (c + 1) * x + 0.07 * (c + 2) * y + seed);
        image.pixels.push_back(static_cast<std::uint8_t>(127.5 + 100 * wave));
      }
    }
  }
  return image;
}

TestImage plain_image(int width, int height, const std::vector<std::uint8_t>& color) {
  TestImage image{width, height, static_cast<int>(color.size()), {}};
  for (int i = 0; i < width * height; ++i) {
    image.pixels.insert(image.pixels.end(), color.begin(), color.end());
  }
  return image;
}

std::string png_of(const TestImage& image, const PngStyle& style) {
  static constexpr int kTypes[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA,
                                   PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA};
  std::string out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &out,
      [](png_structp to, png_bytep bytes, std::size_t count) {
        static_cast<std::string*>(png_get_io_ptr(to))
            ->append(reinterpret_cast<const char*>(bytes), count);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<unsigned>(image.width), static_cast<unsigned>(image.height),
               style.depth, style.palette ? PNG_COLOR_TYPE_PALETTE : kTypes[image.channels - 1],
               style.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (style.palette) {
    std::vector<png_color> colors;
    for (int i = 0; i < 1 << style.depth; ++i) {
      const auto byte = [](int value) { return static_cast<png_byte>(value); };
      colors.push_back({byte(i), byte(255 - i), byte(i / 2)});
    }
    png_set_PLTE(png, info, colors.data(), static_cast<int>(colors.size()));
  }
  png_write_info(png, info);
  std::vector<std::uint8_t> stored;  // rows as the file has them
  const auto numbers =
      static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.channels);
  std::vector<std::size_t> begins;
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    begins.push_back(stored.size());
    unsigned bits = 0;
    for (std::size_t i = 0; i < numbers; ++i) {
      const std::uint8_t value = image.pixels[y * numbers + i];
      if (style.depth >= 8) {
        stored.insert(stored.end(), static_cast<std::size_t>(style.depth / 8), value);
        continue;
      }
      bits = bits << style.depth | value;
      const int in_byte = static_cast<int>(i + 1) * style.depth % 8;
      if (in_byte == 0) stored.push_back(static_cast<std::uint8_t>(bits));
      if (in_byte != 0 && i + 1 == numbers) {
        stored.push_back(static_cast<std::uint8_t>(bits << (8 - in_byte)));
      }
    }
  }
  std::vector<png_bytep> rows;
  for (const std::size_t begin : begins) rows.push_back(stored.data() + begin);
  png_write_image(png, rows.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return out;
}

std::string jpeg_of(const TestImage& image, const JpegStyle& style) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = static_cast<unsigned>(image.width);
  info.image_height = static_cast<unsigned>(image.height);
  info.input_components = image.channels;
  info.in_color_space = image.channels == 1   ? JCS_GRAYSCALE
                        : image.channels == 3 ? JCS_RGB
                                              : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  for (int i = 0; i < info.num_components; ++i) {
    info.comp_info[i].h_samp_factor = info.comp_info[i].v_samp_factor = 1;
  }
  if (style.progressive) jpeg_simple_progression(&info);
  if (image.channels == 4) info.write_Adobe_marker = style.ink == Ink::kAdobe ? TRUE : FALSE;
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    const std::size_t row =
        static_cast<std::size_t>(info.next_scanline) * info.image_width * image.channels;
    JSAMPROW from = const_cast<JSAMPROW>(image.pixels.data() + row);
    jpeg_write_scanlines(&info, &from, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string out(reinterpret_cast<const char*>(bytes), size);
  std::free(bytes);  // NOLINT(cppcoreguidelines-no-malloc): libjpeg's
  return out;
}

}  // namespace troika::test
