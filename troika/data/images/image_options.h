// How an image becomes a tensor: the keys that [data] with kind = "images" and the columns of
// tables have in common.
#pragma once

#include <troika/config/key.h>
#include <troika/data/images/image_color.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troika {

enum class ImageResize { kShorterSide, kExact };
enum class ImageCrop { kCenter, kRandom, kRandomResized };

template <>
std::span<const std::string_view> names_of<ImageColor>();
template <>
std::span<const std::string_view> names_of<ImageResize>();
template <>
std::span<const std::string_view> names_of<ImageCrop>();

struct ImageOptions {
  std::int64_t size = 0;
  ImageColor color = ImageColor::kRgb;
  ImageResize resize = ImageResize::kShorterSide;
  std::int64_t resize_to = 0;
  ImageCrop crop = ImageCrop::kCenter;
  double crop_area = 0.08;
  bool flip = false;
  std::vector<double> mean, std;

  // Returns the channels of its tensor.
  [[nodiscard]] std::int64_t channels() const { return color == ImageColor::kRgb ? 3 : 1; }
  bool operator==(const ImageOptions&) const = default;
};

// Says what contradicts itself, after the key's name and a colon; empty where nothing does.
[[nodiscard]] std::string refusal_of(const ImageOptions& options);

// Says what does not go with a tensor of the model, [channels, height, width], where 0 stands for a
// size that it has left open; empty where all does.
[[nodiscard]] std::string refusal_of(const ImageOptions& options,
                                     std::span<const std::int64_t> shape);

// Returns the keys of a struct that derives from ImageOptions, but for `size`.
template <class O>
[[nodiscard]] std::vector<Key> image_keys() {
  using K = KeysOf<O>;
  constexpr NumberRange kArea{0, 1, NumberRange::End::kOpen, NumberRange::End::kClosed};
  constexpr NumberRange kAny{-1e6, 1e6};
  // clang-format off
  return {
      K::template choice<&O::color>("color", "the channels of the tensor: three, or the brightness alone"),
      K::template choice<&O::resize>("resize", "shorter_side: to `resize_to`, then cropped; exact: both sides to `size`, whatever their ratio"),
      K::template integer<&O::resize_to>("resize_to", IntegerRange{0, 100'000}, "pixels of the shorter side before a center or random crop; 0: `size`"),
      K::template choice<&O::crop>("crop", "of images to train on: the center, a random place, or a random part of `crop_area` and more, resized"),
      K::template number<&O::crop_area>("crop_area", kArea, "of crop = \"random_resized\": the smallest part of the image"),
      K::template boolean<&O::flip>("flip", "mirror every other image to train on, left to right, by chance"),
      K::template numbers<&O::mean>("mean", kAny, "subtracted, one a channel, of pixels in [0, 1]; []: of up to 1,024 images of the training side"),
      K::template numbers<&O::std>("std", ranges::kAboveZero, "divided by, one a channel; []: as `mean`"),
  };
  // clang-format on
}

}  // namespace troika
