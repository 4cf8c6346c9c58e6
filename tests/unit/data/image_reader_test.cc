// Images as tensors: resizing against LibTorch's, the parts that are cut out, and what is drawn.
#include <support/test_images.h>
#include <troika/data/images/decode_workers.h>
#include <troika/data/images/image_moments.h>
#include <troika/data/images/image_reader.h>
#include <unit/data/support.h>

#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <set>

namespace troika {
namespace {

using test::png_of;
using test::smooth_image;
using test::TestImage;
using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr auto kEvaluation = std::nullopt;

std::vector<float> numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

// Planes of a test image, [channels, height, width].
at::Tensor planes_of(const TestImage& image) {
  return at::tensor(at::ArrayRef<std::uint8_t>(image.pixels), at::kByte)
      .view({image.height, image.width, image.channels})
      .permute({2, 0, 1})
      .to(at::kFloat);
}

std::vector<std::uint8_t> with_fourth_byte(const TestImage& image) {
  if (image.channels == 1) return image.pixels;
  std::vector<std::uint8_t> pixels;
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    pixels.push_back(image.pixels[i]);
    if (i % 3 == 2) pixels.push_back(255);
  }
  return pixels;
}

at::Tensor resampled(const TestImage& image, const ImageWindow& window, std::int64_t height,
                     std::int64_t width, Mirror mirror = Mirror::kNo) {
  const std::vector<std::uint8_t> pixels = with_fourth_byte(image);
  at::Tensor out = at::empty({image.channels, height, width});
  resample({pixels.data(), image.width, image.height, image.channels == 1 ? 1 : 4}, window, height,
           width, mirror, {}, out.mutable_data_ptr<float>());
  return out;
}

ImageWindow all_of(const TestImage& image) {
  return {0, 0, static_cast<double>(image.width), static_cast<double>(image.height)};
}

TEST(Resample, EqualsLibTorchsWithAntialias) {
  for (const int channels : {1, 3}) {
    const TestImage image = smooth_image(61, 45, channels);
    for (const auto& [height, width] :
         {std::pair<int, int>{45, 61}, {16, 16}, {13, 40}, {90, 70}, {1, 1}, {44, 7}}) {
      const at::Tensor expected =
          at::_upsample_bilinear2d_aa(planes_of(image).unsqueeze(0), {height, width}, false)[0];
      const at::Tensor found = resampled(image, all_of(image), height, width);
      EXPECT_LT((found - expected).abs().max().item<float>(), 2e-3) << height << " x " << width;
    }
  }
}

TEST(Resample, KeepsPixelsThatAreNotResized) {
  const TestImage image = smooth_image(20, 10, 3);
  const at::Tensor found = resampled(image, {4, 3, 8, 5}, 5, 8);
  EXPECT_TRUE(at::equal(found, planes_of(image).slice(1, 3, 8).slice(2, 4, 12)));
}

TEST(Resample, MirrorsFromLeftToRight) {
  for (const int channels : {1, 3}) {
    const TestImage image = smooth_image(31, 17, channels);
    const at::Tensor found = resampled(image, all_of(image), 9, 12, Mirror::kYes);
    EXPECT_TRUE(at::equal(found, resampled(image, all_of(image), 9, 12).flip({2})));
  }
}

ImageOptions options_of(std::int64_t size, ImageColor color = ImageColor::kRgb) {
  ImageOptions options;
  options.size = size;
  options.color = color;
  return options;
}

ImageShape square(std::int64_t size, std::int64_t channels = 3) {
  return {channels, size, size};
}

TEST(ImageWindow, EvaluatesOnTheCentre) {
  ImageOptions options = options_of(8);
  options.resize_to = 10;
  const ImageWindow window = choose_window(options, square(8), {40, 20}, kEvaluation);
  // 20 x 10 pixels after resizing, of which the middle 8 are left.
  EXPECT_EQ(window.x, 12);
  EXPECT_EQ(window.y, 2);
  EXPECT_EQ(window.width, 16);
  EXPECT_EQ(window.height, 16);
  options.crop = ImageCrop::kRandomResized;
  const ImageWindow same = choose_window(options, square(8), {40, 20}, kEvaluation);
  EXPECT_EQ(same.x, window.x);
  EXPECT_EQ(same.width, window.width);
}

TEST(ImageWindow, TakesAllOfTheImageWhereSidesAreExact) {
  ImageOptions options = options_of(8);
  options.resize = ImageResize::kExact;
  const ImageWindow window = choose_window(options, square(8), {40, 20}, ImageDraw{1, 2});
  EXPECT_EQ(window.width, 40);
  EXPECT_EQ(window.height, 20);
}

TEST(ImageWindow, StaysInsideOfImagesOfAnyShape) {
  for (const ImageCrop crop : {ImageCrop::kCenter, ImageCrop::kRandom, ImageCrop::kRandomResized}) {
    ImageOptions options = options_of(8);
    options.crop = crop;
    for (const std::int64_t resize_to : {0, 9, 11}) {
      options.resize_to = resize_to;
      for (const PixelSize full : {PixelSize{1, 1}, {7, 300}, {300, 7}, {8, 8}, {500, 375}}) {
        for (std::int64_t ordinal = 0; ordinal < 50; ++ordinal) {
          const ImageWindow window = choose_window(options, square(8), full, ImageDraw{7, ordinal});
          EXPECT_GE(window.x, 0);
          EXPECT_GE(window.y, 0);
          EXPECT_GT(window.width, 0);
          EXPECT_GT(window.height, 0);
          EXPECT_LE(window.x + window.width, static_cast<double>(full.width) + 1e-9);
          EXPECT_LE(window.y + window.height, static_cast<double>(full.height) + 1e-9);
        }
      }
    }
  }
}

TEST(ImageWindow, DrawsPartsOfEveryAreaAndPlace) {
  ImageOptions options = options_of(8);
  options.crop = ImageCrop::kRandomResized;
  double least = 1, most = 0, sum = 0, left = 0;
  constexpr int kDraws = 4000;
  for (std::int64_t ordinal = 0; ordinal < kDraws; ++ordinal) {
    const ImageWindow window = choose_window(options, square(8), {500, 400}, ImageDraw{7, ordinal});
    const double area = window.width * window.height / (500 * 400);
    const double ratio = window.width / window.height;
    EXPECT_GT(ratio, 0.73);
    EXPECT_LT(ratio, 1.36);
    least = std::min(least, area);
    most = std::max(most, area);
    sum += area;
    left += window.x + window.width / 2;
  }
  EXPECT_NEAR(least, 0.08, 0.01);
  EXPECT_GT(most, 0.95);
  EXPECT_NEAR(sum / kDraws, 0.5, 0.05);
  EXPECT_NEAR(left / kDraws, 250, 5);
}

TEST(ImageWindow, MirrorsHalfOfTheDraws) {
  ImageOptions options = options_of(8);
  options.flip = true;
  int mirrored = 0;
  for (std::int64_t ordinal = 0; ordinal < 4000; ++ordinal) {
    mirrored += choose_mirror(options, ImageDraw{7, ordinal}) == Mirror::kYes ? 1 : 0;
  }
  EXPECT_NEAR(mirrored, 2000, 150);
  EXPECT_EQ(choose_mirror(options, kEvaluation), Mirror::kNo);
}

at::Tensor read(const ImageReader& reader, const std::string& file,
                const std::optional<ImageDraw>& draw = kEvaluation) {
  const ImageShape& shape = reader.shape();
  at::Tensor out = at::empty({shape.channels, shape.height, shape.width});
  EXPECT_EQ(reader.read(std::as_bytes(std::span(file)), draw, out.mutable_data_ptr<float>()), "");
  return out;
}

TEST(ImageReader, NormalisesEachChannel) {
  ImageOptions options = options_of(2);
  const std::string file = png_of(test::plain_image(2, 2, {255, 102, 0}));
  EXPECT_THAT(numbers(read(ImageReader(options, square(2)), file).select(2, 0).select(1, 0)),
              ElementsAre(1, ::testing::FloatEq(0.4F), 0));
  options.mean = {0.5, 0.4, 0.25};
  options.std = {0.5, 0.1, 0.125};
  const at::Tensor found = read(ImageReader(options, square(2)), file).select(2, 0).select(1, 0);
  EXPECT_LT((found - at::tensor({1.0F, 0.0F, -2.0F})).abs().max().item<float>(), 1e-5);
}

TEST(ImageReader, IsAFunctionOfKeyAndOrdinal) {
  ImageOptions options = options_of(16);
  options.crop = ImageCrop::kRandomResized;
  options.flip = true;
  const ImageReader reader(options, square(16));
  const std::string file = test::jpeg_of(smooth_image(90, 70, 3));
  const at::Tensor first = read(reader, file, ImageDraw{5, 17});
  EXPECT_TRUE(at::equal(first, read(reader, file, ImageDraw{5, 17})));
  EXPECT_FALSE(at::equal(first, read(reader, file, ImageDraw{5, 18})));
  EXPECT_FALSE(at::equal(first, read(reader, file, ImageDraw{6, 17})));
}

// What is decoded at a half or less looks as what is resized from all pixels.
TEST(ImageReader, HardlyDiffersWhereJpegIsShrunk) {
  const TestImage image = smooth_image(320, 240, 3);  // a half of it is decoded
  const at::Tensor expected = at::_upsample_bilinear2d_aa(
      planes_of(image).slice(2, 40, 280).unsqueeze(0), {60, 60}, false)[0];
  const at::Tensor found = read(ImageReader(options_of(60), square(60)), test::jpeg_of(image));
  const at::Tensor difference = (found * 255 - expected).abs();
  EXPECT_LT(difference.max().item<float>(), 16);
  EXPECT_LT(difference.mean().item<float>(), 2);
}

TEST(ImageReader, EnlargesSmallImages) {
  const std::string file = png_of(smooth_image(3, 5, 1));
  const at::Tensor found =
      read(ImageReader(options_of(12, ImageColor::kGray), square(12, 1)), file);
  EXPECT_TRUE(at::isfinite(found).all().item<bool>());
}

TEST(ImageReader, SaysWhatIsWrong) {
  const std::string file = png_of(smooth_image(9, 9, 3));
  const auto check = [&](const std::string& text) {
    return damage_of(std::as_bytes(std::span(text)), ImageColor::kRgb);
  };
  EXPECT_EQ(check(file), "");
  EXPECT_THAT(check(file.substr(0, 60)), StartsWith("is a damaged PNG image: "));
  EXPECT_EQ(check("no"), "is no JPEG or PNG image");
}

TEST(ImageOptions, RefusesWhatContradictsItself) {
  EXPECT_EQ(refusal_of(options_of(8)), "");
  ImageOptions options = options_of(8);
  options.resize_to = 7;
  EXPECT_THAT(refusal_of(options), StartsWith("resize_to: 7 is less than size = 8"));
  options = options_of(8);
  options.resize = ImageResize::kExact;
  options.crop = ImageCrop::kRandom;
  EXPECT_THAT(refusal_of(options), StartsWith("crop: "));
  options = options_of(8);
  options.mean = {0.5};
  EXPECT_THAT(refusal_of(options), StartsWith("std: mean is given"));
  options.std = {0.5};
  EXPECT_THAT(refusal_of(options), StartsWith("mean: expected one number a channel, 3 for"));
}

TEST(ImageMoments, AreThoseOfAllPixels) {
  const std::vector<float> planes = {0, 1, 1, 0, 0.5, 0.5, 0.5, 0.5};
  const std::vector<std::vector<ChannelSums>> images = {sums_of(planes, 2), sums_of(planes, 2)};
  const ChannelMoments moments = moments_of(images, 4);
  EXPECT_THAT(moments.mean, ElementsAre(0.5, 0.5));
  EXPECT_THAT(moments.std, ElementsAre(0.5, 1));
  EXPECT_THAT(even_sample(10, 4), ElementsAre(0, 2, 5, 7));
  EXPECT_THAT(even_sample(2, 4), ElementsAre(0, 1));
}

TEST(DecodeWorkers, DoAllWorkOnce) {
  for (const std::int64_t threads : {1, 2, 5}) {
    DecodeWorkers workers(threads);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(round) * 3);
      workers.for_each(std::ssize(done),
                       [&](std::int64_t i) { ++done[static_cast<std::size_t>(i)]; });
      for (const auto& each : done) EXPECT_EQ(each, 1);
    }
  }
}

TEST(DecodeWorkers, RethrowTheFirstErrorAndGoOn) {
  DecodeWorkers workers(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(message_of([&] {
                workers.for_each(50, [](std::int64_t i) {
                  if (i % 10 == 7) throw DataError("image " + std::to_string(i));
                });
              }),
              "image 7");
  }
}

}  // namespace
}  // namespace troika
