#include <troika/data/sources/images/options.h>

#include <array>

namespace troika {

template <>
std::span<const std::string_view> names_of<OnBadImage>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"stop", "skip"});
  return kNames;
}

std::vector<Key> folder_keys() {
  using O = FolderOptions;
  using K = KeysOf<O>;
  // clang-format off
  std::vector<Key> keys = {
      K::text<&O::path>("path", "a folder that has a folder of .jpg, .jpeg and .png files for each class; relative to the current folder").required(),
      K::text<&O::validation_path>("validation_path", "such a folder for the held-out side; none: it is a part of `path`"),
      K::number<&O::held_out_fraction>("held_out_fraction", ranges::kBelowOne, "images kept for evaluation, chosen by a hash of class and file name"),
      K::texts<&O::classes>("classes", "the classes by number; []: the folders of `path`, sorted"),
      K::boolean<&O::balance_classes>("balance_classes", "train on each class equally often, however many images it has"),
      K::integer<&O::size>("size", IntegerRange{0, 10'000}, "height and width of the tensor; 0: what the model takes, or those of the first image"),
  };
  for (const Key& key : image_keys<O>()) keys.push_back(key);
  keys.insert(keys.end(), {
      K::choice<&O::on_bad_image>("on_bad_image", "where an image cannot be decoded: stop there, or leave such images out, for which all are decoded once at the start"),
      K::integer<&O::workers>("workers", IntegerRange{0, 1'000}, "threads that decode; 0: a rank's cores"),
  });
  // clang-format on
  return keys;
}

}  // namespace troika
