#include <troika/base/text.h>
#include <troika/data/images/image_options.h>

#include <array>

namespace troika {

template <>
std::span<const std::string_view> names_of<ImageColor>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"rgb", "gray"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<ImageResize>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"shorter_side", "exact"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<ImageCrop>() {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"center", "random", "random_resized"});
  return kNames;
}

std::string refusal_of(const ImageOptions& options) {
  const bool exact = options.resize == ImageResize::kExact;
  if (exact && options.resize_to > 0) {
    return "resize_to: resize = \"exact\" leaves nothing to crop; only `size` counts there";
  }
  if (exact && options.crop == ImageCrop::kRandom) {
    return "crop: resize = \"exact\" leaves nothing to crop";
  }
  if (options.resize_to > 0 && options.resize_to < options.size) {
    return "resize_to: " + std::to_string(options.resize_to) +
           " is less than size = " + std::to_string(options.size);
  }
  if (options.mean.empty() != options.std.empty()) {
    return options.mean.empty() ? "mean: std is given, and mean is not"
                                : "std: mean is given, and std is not";
  }
  const auto channels = static_cast<std::size_t>(options.channels());
  for (const auto& [name, list] : {std::pair("mean", &options.mean), {"std", &options.std}}) {
    if (list->empty() || list->size() == channels) continue;
    return std::string(name) + ": expected one number a channel, " + std::to_string(channels) +
           " for color = \"" + std::string(name_of(options.color)) + "\", found " +
           std::to_string(list->size());
  }
  return "";
}

std::string refusal_of(const ImageOptions& options, std::span<const std::int64_t> shape) {
  if (shape[0] != 0 && shape[0] != options.channels()) {
    return "color = \"" + std::string(name_of(options.color)) + "\" gives " +
           plural(options.channels(), "channel") + ", and the model takes " +
           std::to_string(shape[0]);
  }
  for (const std::int64_t side : shape.subspan(1)) {
    if (options.size == 0 || side == 0 || side == options.size) continue;
    return "size = " + std::to_string(options.size) + ", and the model takes images of " +
           std::to_string(shape[1]) + " x " + std::to_string(shape[2]);
  }
  return "";
}

}  // namespace troika
