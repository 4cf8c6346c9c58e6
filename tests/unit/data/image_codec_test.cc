// The plug-in that decodes images: what it makes of each form, and what it refuses.
#include <support/test_images.h>
#include <troika/data/images/image_library.h>
#include <troika/data/images/image_options.h>
#include <unit/data/support.h>

#include <cstdlib>

namespace troika {
namespace {

using test::Ink;
using test::jpeg_of;
using test::plain_image;
using test::png_of;
using test::smooth_image;
using test::TestImage;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Keeps what was decoded.
class Kept final : public image_plugin::Receiver {
 public:
  explicit Kept(ImageColor color, PixelSize least = {1 << 20, 1 << 20})
      : color_(color), least_(least) {}
  PixelSize full, decoded;
  int shrunk = 0;
  std::vector<std::uint8_t> pixels;

  [[nodiscard]] PixelSize least_size(PixelSize size) override {
    full = size;
    return least_;
  }
  [[nodiscard]] std::uint8_t* rows(PixelSize size, int divided_by) override {
    decoded = size;
    shrunk = divided_by;
    pixels.resize(
        static_cast<std::size_t>(size.width * size.height * image_plugin::bytes_per_pixel(color_)));
    return pixels.data();
  }
  [[nodiscard]] std::vector<int> pixel(std::int64_t x, std::int64_t y) const {
    const std::int64_t bytes = image_plugin::bytes_per_pixel(color_);
    const std::uint8_t* at = pixels.data() + (y * decoded.width + x) * bytes;
    return bytes == 1 ? std::vector<int>{*at} : std::vector<int>{at[0], at[1], at[2]};
  }

 private:
  ImageColor color_;
  PixelSize least_;
};

std::string decode(const std::string& file, Kept& kept, ImageColor color = ImageColor::kRgb) {
  std::string problem;
  const bool done = image_library().decode(std::as_bytes(std::span(file)), color, kept,
                                           [&](std::string_view reason) { problem = reason; });
  EXPECT_EQ(done, problem.empty());
  return problem;
}

Kept decoded(const std::string& file, ImageColor color = ImageColor::kRgb) {
  Kept kept(color);
  EXPECT_EQ(decode(file, kept, color), "");
  return kept;
}

std::string problem_of(const std::string& file) {
  Kept kept(ImageColor::kRgb);
  const std::string problem = decode(file, kept);
  EXPECT_EQ(problem.find('\n'), std::string::npos);
  return problem;
}

// The pixel of a test image as three channels.
std::vector<int> color_at(const TestImage& image, std::int64_t x, std::int64_t y) {
  const std::uint8_t* at =
      &image.pixels[static_cast<std::size_t>((y * image.width + x) * image.channels)];
  if (image.channels < 3) return {at[0], at[0], at[0]};
  return {at[0], at[1], at[2]};
}

void expect_near(const TestImage& image, const Kept& kept, int tolerance) {
  ASSERT_EQ(kept.decoded, (PixelSize{image.width, image.height}));
  int worst = 0;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      const std::vector<int> found = kept.pixel(x, y), wanted = color_at(image, x, y);
      for (std::size_t c = 0; c < 3; ++c) worst = std::max(worst, std::abs(found[c] - wanted[c]));
    }
  }
  EXPECT_LE(worst, tolerance);
}

TEST(ImageCodec, DecodesEachKindOfPng) {
  for (const int channels : {1, 2, 3, 4}) {
    for (const int depth : {8, 16}) {
      for (const bool interlaced : {false, true}) {
        const TestImage image = smooth_image(19, 11, channels);
        expect_near(image, decoded(png_of(image, {depth, interlaced})), 0);
      }
    }
  }
}

TEST(ImageCodec, SpreadsFewLevelsOfGreyOverAll) {
  const TestImage image{5, 1, 1, {0, 1, 1, 0, 1}};
  const Kept kept = decoded(png_of(image, {1}), ImageColor::kGray);
  EXPECT_EQ(kept.pixels, (std::vector<std::uint8_t>{0, 255, 255, 0, 255}));
  const TestImage levels{4, 1, 1, {0, 1, 2, 3}};
  EXPECT_EQ(decoded(png_of(levels, {2}), ImageColor::kGray).pixels,
            (std::vector<std::uint8_t>{0, 85, 170, 255}));
}

TEST(ImageCodec, LooksPalettesUp) {
  const TestImage image{3, 1, 1, {0, 100, 255}};
  const Kept kept = decoded(png_of(image, {8, false, true}));
  EXPECT_EQ(kept.pixel(0, 0), (std::vector<int>{0, 255, 0}));
  EXPECT_EQ(kept.pixel(1, 0), (std::vector<int>{100, 155, 50}));
  EXPECT_EQ(kept.pixel(2, 0), (std::vector<int>{255, 0, 127}));
}

TEST(ImageCodec, DecodesEachKindOfJpeg) {
  for (const int channels : {1, 3}) {
    for (const bool progressive : {false, true}) {
      const TestImage image = smooth_image(61, 43, channels);
      expect_near(image, decoded(jpeg_of(image, {progressive})), 9);
    }
  }
}

TEST(ImageCodec, TakesInkAsItLooksOnPaper) {
  // 20 % cyan, 60 % magenta and no yellow under 50 % black.
  const std::vector<std::uint8_t> ink = {51, 153, 0, 128};
  const std::vector<int> expected = {204 * 127 / 255, 102 * 127 / 255, 127};
  for (const Ink kind : {Ink::kPlain, Ink::kAdobe}) {
    std::vector<std::uint8_t> stored = ink;
    if (kind == Ink::kAdobe) {
      for (std::uint8_t& each : stored) each = static_cast<std::uint8_t>(255 - each);
    }
    const Kept kept = decoded(jpeg_of(plain_image(16, 16, stored), {false, kind}));
    for (std::size_t c = 0; c < 3; ++c) EXPECT_NEAR(kept.pixel(7, 7)[c], expected[c], 3);
  }
}

TEST(ImageCodec, GivesTheBrightnessOfColours) {
  const TestImage image = plain_image(16, 16, {200, 100, 50});
  const int expected = (299 * 200 + 587 * 100 + 114 * 50) / 1000;
  for (const std::string& file : {png_of(image), jpeg_of(image)}) {
    EXPECT_NEAR(decoded(file, ImageColor::kGray).pixel(8, 8)[0], expected, 2);
  }
}

TEST(ImageCodec, ShrinksJpegAsFarAsTheWantedSizeAllows) {
  const std::string file = jpeg_of(smooth_image(101, 64, 3));
  const auto shrunk = [&](PixelSize least) {
    Kept kept(ImageColor::kRgb, least);
    EXPECT_EQ(decode(file, kept), "");
    EXPECT_EQ(kept.full, (PixelSize{101, 64}));
    const std::int64_t by = kept.shrunk;
    EXPECT_EQ(kept.decoded, (PixelSize{(101 + by - 1) / by, (64 + by - 1) / by}));
    return kept.shrunk;
  };
  EXPECT_EQ(shrunk({102, 64}), 1);
  EXPECT_EQ(shrunk({51, 32}), 1);
  EXPECT_EQ(shrunk({50, 32}), 2);
  EXPECT_EQ(shrunk({20, 16}), 4);
  EXPECT_EQ(shrunk({1, 1}), 8);
}

TEST(ImageCodec, TellsTheSizeWithoutDecoding) {
  for (const std::string& file :
       {png_of(smooth_image(30, 20, 3)), jpeg_of(smooth_image(30, 20, 3))}) {
    Kept kept(ImageColor::kRgb, {0, 0});
    EXPECT_EQ(decode(file, kept), "");
    EXPECT_EQ(kept.full, (PixelSize{30, 20}));
    EXPECT_EQ(kept.shrunk, 0);
  }
}

TEST(ImageCodec, RefusesWhatIsNoImage) {
  EXPECT_EQ(problem_of(""), "is empty");
  EXPECT_EQ(problem_of("GIF89a and so on"), "is no JPEG or PNG image");
  EXPECT_EQ(problem_of("\xFF\xD8"), "is no JPEG or PNG image");
  EXPECT_THAT(problem_of("\xFF\xD8\xFF"), StartsWith("is a damaged JPEG image: "));
  EXPECT_THAT(problem_of("\x89PNG\r\n\x1A\n"), StartsWith("is a damaged PNG image: "));
}

TEST(ImageCodec, RefusesAFileThatIsCutAnywhere) {
  const TestImage image = smooth_image(40, 30, 3);
  for (const std::string& file : {png_of(image), png_of(image, {8, true}), jpeg_of(image),
                                  jpeg_of(image, {true}), jpeg_of(smooth_image(17, 9, 4))}) {
    for (std::size_t bytes = 8; bytes < file.size(); ++bytes) {
      ASSERT_THAT(problem_of(file.substr(0, bytes)), StartsWith("is a damaged ")) << bytes;
    }
  }
}

TEST(ImageCodec, NamesWhatTheLibrarySays) {
  const std::string jpeg = jpeg_of(smooth_image(40, 30, 3));
  EXPECT_EQ(problem_of(jpeg.substr(0, jpeg.size() / 2)),
            "is a damaged JPEG image: Premature end of JPEG file");
  const std::string png = png_of(smooth_image(40, 30, 3));
  EXPECT_EQ(problem_of(png.substr(0, png.size() / 2)),
            "is a damaged PNG image: the file ends too early");
}

TEST(ImageCodec, SurvivesEveryDamagedByte) {
  const TestImage image = smooth_image(24, 20, 3);
  for (const std::string& file : {png_of(image), jpeg_of(image), jpeg_of(image, {true})}) {
    std::int64_t refused = 0;
    for (std::size_t i = 0; i < file.size(); ++i) {
      for (const char flip : {'\x01', '\x80', '\xFF'}) {
        std::string damaged = file;
        damaged[i] = static_cast<char>(damaged[i] ^ flip);
        refused += problem_of(damaged).empty() ? 0 : 1;
      }
    }
    EXPECT_GT(refused, 10);
  }
}

// Each header says more pixels than are decoded: no memory is asked for.
TEST(ImageCodec, RefusesHugeHeadersBeforeItTakesMemory) {
  std::string jpeg = jpeg_of(smooth_image(16, 16, 3));
  const std::size_t frame = jpeg.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  for (const std::size_t i : {5, 6, 7, 8}) jpeg[frame + i] = '\xF0';
  // The checksum of this header is right.
  static constexpr char kPng[] =
      "\x89PNG\r\n\x1A\n\0\0\0\rIHDR\0\0\x4E\x20\0\0\x4E\x20\x08\x02\0\0\0\x6C\x12\xD1\x6E"
      "\0\0\0\0IDAT";
  for (const auto& [file, size] :
       {std::pair(jpeg, "61680 x 61680"), {std::string(kPng, sizeof(kPng) - 1), "20000 x 20000"}}) {
    Kept kept(ImageColor::kRgb);
    EXPECT_EQ(decode(file, kept),
              "has " + std::string(size) + " pixels; at most 67108864 are decoded");
    EXPECT_EQ(kept.shrunk, 0);
  }
}

TEST(ImageCodec, DecodesLongThinImages) {
  for (const TestImage& image : {smooth_image(70'000, 1, 1), smooth_image(1, 70'000, 1)}) {
    expect_near(image, decoded(png_of(image)), 0);
  }
}

TEST(ImageCodec, RefusesEndlessScans) {
  // The first scan again and again: it sets the same coefficients each time.
  const std::string file = jpeg_of(smooth_image(32, 32, 3), {true});
  const std::size_t first = file.find("\xFF\xDA");
  const std::size_t after = file.find("\xFF\xC4", first);  // the tables of the next scan
  std::string endless = file.substr(0, after);
  for (int i = 0; i < 600; ++i) endless += file.substr(first, after - first);
  endless += file.substr(after);
  EXPECT_EQ(problem_of(endless), "is a damaged JPEG image: it has more than 500 scans");
}

}  // namespace
}  // namespace troika
