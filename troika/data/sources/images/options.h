// The keys of [data] with kind = "images".
#pragma once

#include <troika/config/key.h>
#include <troika/data/images/image_options.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

enum class OnBadImage { kStop, kSkip };

template <>
std::span<const std::string_view> names_of<OnBadImage>();

// Stands for no folder.
inline constexpr const char* kNoFolder = "none";

struct FolderOptions : ImageOptions {
  std::string path;
  std::string validation_path = kNoFolder;
  double held_out_fraction = 0.1;
  std::vector<std::string> classes;
  bool balance_classes = false;
  OnBadImage on_bad_image = OnBadImage::kStop;
  std::int64_t workers = 0;

  bool operator==(const FolderOptions&) const = default;
};

[[nodiscard]] std::vector<Key> folder_keys();

}  // namespace troika
