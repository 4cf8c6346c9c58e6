#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/data/images/image_library.h>
#include <troika/data/images/image_reader.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace troika {
namespace {

// Hears the size, and wants nothing else.
class SizeReceiver final : public image_plugin::Receiver {
 public:
  PixelSize size;

  [[nodiscard]] PixelSize least_size(PixelSize full) override {
    size = full;
    return {};
  }
  [[nodiscard]] std::uint8_t* rows(PixelSize, int) override {
    throw InternalError("internal error: an image that nobody wants");
  }
};

// Keeps the pixels in memory that the thread uses again.
class PixelReceiver : public image_plugin::Receiver {
 public:
  explicit PixelReceiver(ImageColor color) { view.bytes = image_plugin::bytes_per_pixel(color); }
  PixelView view;
  int shrunk = 1;

  [[nodiscard]] PixelSize least_size(PixelSize) override { return {1, 1}; }
  [[nodiscard]] std::uint8_t* rows(PixelSize decoded, int divided_by) override {
    thread_local std::vector<std::uint8_t> kept;
    const auto bytes = static_cast<std::size_t>(decoded.width * decoded.height * view.bytes);
    if (bytes > kept.size() || kept.size() > kMostKept) kept = std::vector<std::uint8_t>(bytes);
    view.data = kept.data();
    view.width = decoded.width;
    view.height = decoded.height;
    shrunk = divided_by;
    return kept.data();
  }

 private:
  static constexpr std::size_t kMostKept = std::size_t{16} << 20;
};

// Chooses the part of the image first, so that no more pixels are decoded than its tensor needs.
class WindowReceiver final : public PixelReceiver {
 public:
  WindowReceiver(const ImageOptions& options, const ImageShape& shape,
                 const std::optional<ImageDraw>& draw)
      : PixelReceiver(options.color), options_(options), shape_(shape), draw_(draw) {}

  [[nodiscard]] PixelSize least_size(PixelSize full) override {
    // Shrunk pixels are averages of squares. Where two of them or more become one pixel of the
    // tensor, that hardly differs from smoothing all pixels.
    constexpr double kSpare = 2;
    window_ = choose_window(options_, shape_, full, draw_);
    const auto least = [](std::int64_t all, double part, std::int64_t wanted) {
      return static_cast<std::int64_t>(
          std::ceil(kSpare * static_cast<double>(all) * static_cast<double>(wanted) / part));
    };
    return {least(full.width, window_.width, shape_.width),
            least(full.height, window_.height, shape_.height)};
  }
  // Returns the window in pixels of the decoded image.
  [[nodiscard]] ImageWindow window() const {
    const double divided_by = shrunk;
    return {window_.x / divided_by, window_.y / divided_by, window_.width / divided_by,
            window_.height / divided_by};
  }

 private:
  const ImageOptions& options_;
  const ImageShape& shape_;
  const std::optional<ImageDraw>& draw_;
  ImageWindow window_;
};

// Returns what is wrong with the image.
std::string decode(std::span<const std::byte> bytes, ImageColor color,
                   image_plugin::Receiver& receiver) {
  std::string problem;
  const bool done = image_library().decode(bytes, color, receiver,
                                           [&](std::string_view reason) { problem = reason; });
  check(done == problem.empty(), "an image that is neither decoded nor refused");
  return problem;
}

}  // namespace

ImageReader::ImageReader(const ImageOptions& options, const ImageShape& shape)
    : options_(options), shape_(shape) {
  check(options.channels() == shape.channels, "an image with other channels");
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.channels); ++i) {
    const double mean = options.mean.empty() ? 0 : options.mean[i];
    const double std = options.std.empty() ? 1 : options.std[i];
    scale_.scale[i] = static_cast<float>(1 / (255 * std));
    scale_.shift[i] = static_cast<float>(-mean / std);
  }
}

std::string ImageReader::read(std::span<const std::byte> bytes,
                              const std::optional<ImageDraw>& draw, float* out) const {
  WindowReceiver receiver(options_, shape_, draw);
  std::string problem = decode(bytes, options_.color, receiver);
  if (problem.empty()) {
    resample(receiver.view, receiver.window(), shape_.height, shape_.width,
             choose_mirror(options_, draw), scale_, out);
  }
  return problem;
}

std::string damage_of(std::span<const std::byte> bytes, ImageColor color) {
  PixelReceiver receiver(color);
  return decode(bytes, color, receiver);
}

std::string read_image_file(const std::filesystem::path& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{512} << 20;
  if (!is_remote(path.native())) return read_file(path, kMostBytes);
  const std::string& url = path.native();
  const std::size_t query = std::min(url.find('?'), url.size()), slash = url.rfind('/', query);
  const ObjectStore folder(url.substr(0, slash) + url.substr(query));
  return folder.read_data(url.substr(slash + 1, query - slash - 1), kMostBytes);
}

std::string damage_of_file(const std::filesystem::path& path, ImageColor color) {
  try {
    const std::string content = read_image_file(path);
    return damage_of(std::as_bytes(std::span(content)), color);
  } catch (const DataError& error) {
    return std::string("cannot be read: ") + error.what();
  }
}

PixelSize image_size(std::span<const std::byte> bytes, std::string& problem) {
  SizeReceiver receiver;
  problem = decode(bytes, ImageColor::kRgb, receiver);
  return receiver.size;
}

}  // namespace troika
