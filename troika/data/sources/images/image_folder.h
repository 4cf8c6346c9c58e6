// Internal: the files of a folder that has a folder for each class, here or in an object store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troika {

struct ImageFile {
  std::int32_t label = 0;  // the number of its class
  std::string name;        // its path inside of the class's folder
  std::int64_t bytes = 0;  // where an object store has listed it; else 0

  bool operator==(const ImageFile&) const = default;
};

// Files sorted by class and name, and classes by number. Names that begin with a dot are left out.
class ImageFolder {
 public:
  // Lists the images. The classes are `classes`, or the names of the folders in sorted order where
  // that is empty. Throws DataError where there is no folder, no class, a folder that is no class,
  // or a folder of a class without an image.
  ImageFolder(std::filesystem::path path, std::span<const std::string> classes);

  // Lists all images below a folder, or the one file that `path` is, of no class: their label is 0.
  // Throws DataError where there is none.
  [[nodiscard]] static ImageFolder without_classes(const std::filesystem::path& path);

  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }
  [[nodiscard]] const std::vector<ImageFile>& files() const { return files_; }
  [[nodiscard]] std::filesystem::path path_of(const ImageFile& file) const {
    return path_ / classes_[static_cast<std::size_t>(file.label)] / file.name;
  }
  // Says which files are no images; empty where all are.
  [[nodiscard]] const std::string& left_out() const { return left_out_; }

 private:
  explicit ImageFolder(std::filesystem::path path) : path_(std::move(path)) {}
  void list(std::int32_t label, std::vector<std::string>& others);
  void open_remote();
  void note_left_out(const std::vector<std::string>& others);

  std::filesystem::path path_;
  // Sizes by name, while an object store's folder is opened.
  std::map<std::string, std::int64_t> remote_;
  std::vector<std::string> classes_;
  std::vector<ImageFile> files_;
  std::string left_out_;
};

// Returns the classes of a folder, sorted, without what is in them. Throws DataError.
[[nodiscard]] std::vector<std::string> classes_in(const std::filesystem::path& path);

}  // namespace troika
