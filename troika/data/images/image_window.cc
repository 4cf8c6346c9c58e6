// Chooses the part of an image that becomes a tensor, by the numbers drawn for its sample.
#include <troika/base/random.h>
#include <troika/data/images/image_reader.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace troika {
namespace {

// Which of a sample's numbers is for what.
enum Drawn : std::uint64_t { kMirrored = 0, kFromLeft = 1, kFromTop = 2, kParts = 16 };

RandomStream stream_of(const ImageDraw& draw) {
  return RandomStream(draw.key, static_cast<std::uint64_t>(draw.ordinal));
}

// Where a length of `inner` begins in one of `outer`.
std::int64_t place(std::int64_t outer, std::int64_t inner,
                   const std::optional<RandomStream>& stream, Drawn which) {
  if (!stream) return (outer - inner) / 2;
  return static_cast<std::int64_t>(
      stream->below(which, static_cast<std::uint64_t>(outer - inner) + 1));
}

// Resizes to `resize_to` and cuts the tensor out; in pixels of the image as it is.
ImageWindow cut(const ImageOptions& options, const ImageShape& shape, PixelSize full,
                const std::optional<RandomStream>& stream) {
  // The shorter side, or more where the tensor would not fit else.
  double ratio =
      static_cast<double>(std::max(options.resize_to, std::min(shape.width, shape.height))) /
      static_cast<double>(std::min(full.width, full.height));
  ratio = std::max({ratio, static_cast<double>(shape.width) / static_cast<double>(full.width),
                    static_cast<double>(shape.height) / static_cast<double>(full.height)});
  const auto resized = [&](std::int64_t side, std::int64_t least) {
    return std::max<std::int64_t>(least, std::llround(static_cast<double>(side) * ratio));
  };
  const std::int64_t width = resized(full.width, shape.width);
  const std::int64_t height = resized(full.height, shape.height);
  const double across = static_cast<double>(full.width) / static_cast<double>(width);
  const double down = static_cast<double>(full.height) / static_cast<double>(height);
  return {static_cast<double>(place(width, shape.width, stream, kFromLeft)) * across,
          static_cast<double>(place(height, shape.height, stream, kFromTop)) * down,
          static_cast<double>(shape.width) * across, static_cast<double>(shape.height) * down};
}

// Draws a part of the image: its area, and its ratio of sides between 3/4 and 4/3 (Szegedy et al.
// 2014, "Going deeper with convolutions"). Where ten of them do not fit, takes all of the image but
// what is beyond those ratios.
ImageWindow draw_part(const ImageOptions& options, PixelSize full, const RandomStream& stream) {
  constexpr int kTries = 10;
  constexpr double kWidest = 4.0 / 3;
  const auto all_width = static_cast<double>(full.width);
  const auto all_height = static_cast<double>(full.height);
  const auto window = [&](double wanted_width, double wanted_height, const auto& at) {
    const std::int64_t width = std::clamp<std::int64_t>(std::llround(wanted_width), 1, full.width);
    const std::int64_t height =
        std::clamp<std::int64_t>(std::llround(wanted_height), 1, full.height);
    return ImageWindow{static_cast<double>(place(full.width, width, at, kFromLeft)),
                       static_cast<double>(place(full.height, height, at, kFromTop)),
                       static_cast<double>(width), static_cast<double>(height)};
  };
  for (std::uint64_t i = 0; i < kTries; ++i) {
    const double part =
        options.crop_area + (1 - options.crop_area) * stream.uniform(kParts + 2 * i);
    // As often wider than high by some factor as the other way round. No logarithm: those of C
    // libraries differ.
    const double turn = 2 * stream.uniform(kParts + 2 * i + 1) - 1;
    const double wider = 1 + std::abs(turn) * (kWidest - 1);
    const double ratio = turn < 0 ? 1 / wider : wider;
    const double area = all_width * all_height * part;
    const double width = std::sqrt(area * ratio), height = std::sqrt(area / ratio);
    if (width <= all_width && height <= all_height) {
      return window(width, height, std::optional(stream));
    }
  }
  return window(std::min(all_width, all_height * kWidest),
                std::min(all_height, all_width * kWidest), std::optional<RandomStream>());
}

}  // namespace

ImageWindow choose_window(const ImageOptions& options, const ImageShape& shape, PixelSize full,
                          const std::optional<ImageDraw>& draw) {
  if (draw && options.crop == ImageCrop::kRandomResized) {
    return draw_part(options, full, stream_of(*draw));
  }
  if (options.resize == ImageResize::kExact) {
    return {0, 0, static_cast<double>(full.width), static_cast<double>(full.height)};
  }
  const bool random = draw && options.crop == ImageCrop::kRandom;
  return cut(options, shape, full,
             random ? std::optional(stream_of(*draw)) : std::optional<RandomStream>());
}

Mirror choose_mirror(const ImageOptions& options, const std::optional<ImageDraw>& draw) {
  if (!options.flip || !draw) return Mirror::kNo;
  return stream_of(*draw).below(kMirrored, 2) == 1 ? Mirror::kYes : Mirror::kNo;
}

}  // namespace troika
