// Makes a tensor of the bytes of an image file: decodes, resizes, crops, mirrors and normalises.
// What is random is a function of a key and the sample's number alone.
#pragma once

#include <troika/data/images/image_options.h>
#include <troika/data/images/resample.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace troika {

// The shape of an image's tensor.
struct ImageShape {
  std::int64_t channels = 0, height = 0, width = 0;

  [[nodiscard]] std::int64_t numbers() const { return channels * height * width; }
};

// Keys what is random of a sample to train on.
struct ImageDraw {
  std::uint64_t key = 0;
  std::int64_t ordinal = 0;
};

// Const access is thread safe.
class ImageReader {
 public:
  // Requires options without a refusal, with as many channels as the shape has. Takes pixels as
  // numbers in [0, 1] where `mean` and `std` are left out.
  ImageReader(const ImageOptions& options, const ImageShape& shape);

  [[nodiscard]] const ImageShape& shape() const { return shape_; }
  // Writes an image's tensor to `out`, as for training, or as for evaluation without a draw.
  // Returns what is wrong with the image, as "is no JPEG or PNG image"; empty where nothing is.
  [[nodiscard]] std::string read(std::span<const std::byte> bytes,
                                 const std::optional<ImageDraw>& draw, float* out) const;

 private:
  ImageOptions options_;
  ImageShape shape_;
  PixelScale scale_;
};

// Decodes all of an image, as small as possible. Returns what is wrong with it; empty where nothing
// is.
[[nodiscard]] std::string damage_of(std::span<const std::byte> bytes, ImageColor color);
// Returns the same of a file, also where it cannot be read.
[[nodiscard]] std::string damage_of_file(const std::filesystem::path& path, ImageColor color);
// Returns the bytes of an image file. Throws DataError naming one that cannot be read.
[[nodiscard]] std::string read_image_file(const std::filesystem::path& path);
// Returns the pixels that an image has. Where that cannot be said, says why in `problem`.
[[nodiscard]] PixelSize image_size(std::span<const std::byte> bytes, std::string& problem);

// Returns which part of an image of `full` pixels becomes the tensor. A mirrored draw is told in
// `mirror`.
[[nodiscard]] ImageWindow choose_window(const ImageOptions& options, const ImageShape& shape,
                                        PixelSize full, const std::optional<ImageDraw>& draw);
[[nodiscard]] Mirror choose_mirror(const ImageOptions& options,
                                   const std::optional<ImageDraw>& draw);

}  // namespace troika
