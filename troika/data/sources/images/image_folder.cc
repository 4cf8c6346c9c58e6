#include <sys/stat.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/data/sources/images/image_folder.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <array>
#include <set>
#include <system_error>
#include <utility>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLayoutHint = "a folder a class, as in PATH/cat/1.jpg and PATH/dog/2.png";

bool is_hidden(const std::string& name) {
  return name.starts_with('.');
}

bool has_image_name(const std::string& name) {
  static constexpr auto kEndings = std::to_array<std::string_view>({".jpg", ".jpeg", ".png"});
  std::string ending = fs::path(name).extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  });
  return std::ranges::find(kEndings, ending) != kEndings.end();
}

// The names in a folder, with what is a folder itself. Links are followed.
struct FolderEntry {
  std::string name;
  bool is_folder;
};

std::vector<FolderEntry> entries_of(const fs::path& folder) {
  std::vector<FolderEntry> entries;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  while (!error && at != fs::directory_iterator()) {
    std::string name = at->path().filename().string();
    std::error_code dangling;
    const bool is_folder = at->is_directory(dangling);
    if (!is_hidden(name)) entries.push_back({std::move(name), is_folder});
    at.increment(error);
  }
  if (error) {
    throw DataError("cannot list the folder " + shown_path(folder) + ": " + error.message(),
                    "relative paths start at the folder the command was started in");
  }
  std::ranges::sort(entries, {}, &FolderEntry::name);
  return entries;
}

// Walks a class's folder. Enters each folder once, by whatever links it is reached.
class Walk {
 public:
  std::vector<std::string> images, others;

  void enter(const fs::path& folder, const std::string& prefix) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return;
    if (!entered_.insert({status.st_dev, status.st_ino}).second) return;
    for (const FolderEntry& entry : entries_of(folder)) {
      const std::string name = prefix + entry.name;
      if (entry.is_folder) {
        enter(folder / entry.name, name + "/");
      } else {
        (has_image_name(entry.name) ? images : others).push_back(name);
      }
    }
  }

 private:
  std::set<std::pair<dev_t, ino_t>> entered_;
};

// The sizes of all files below a folder of an object store by their names, without those that begin
// with a dot.
std::map<std::string, std::int64_t> remote_files(const fs::path& path) {
  std::map<std::string, std::int64_t> sizes;
  for (const ObjectStore::File& file : ObjectStore(path.native()).list()) {
    const bool is_dotted = is_hidden(file.name) || file.name.find("/.") != std::string::npos;
    if (!is_dotted && file.bytes > 0) sizes[file.name] = static_cast<std::int64_t>(file.bytes);
  }
  if (sizes.empty()) {
    throw DataError("there is no file in " + shown_place(path),
                    "check the bucket and the path; ?region=NAME says where a bucket is");
  }
  return sizes;
}

// The folders right below the place that the names start from, sorted.
std::vector<std::string> folders_among(const std::map<std::string, std::int64_t>& files,
                                       const fs::path& path) {
  std::set<std::string> folders;
  for (const auto& [name, size] : files) {
    const std::size_t slash = name.find('/');
    if (slash != std::string::npos) folders.insert(name.substr(0, slash));
  }
  if (folders.empty()) throw DataError("there is no folder in " + shown_place(path), kLayoutHint);
  return {folders.begin(), folders.end()};
}

}  // namespace

std::vector<std::string> classes_in(const fs::path& path) {
  if (is_remote(path.native())) return folders_among(remote_files(path), path);
  std::vector<std::string> classes;
  for (const FolderEntry& entry : entries_of(path)) {
    if (entry.is_folder) classes.push_back(entry.name);
  }
  if (classes.empty()) throw DataError("there is no folder in " + shown_path(path), kLayoutHint);
  return classes;
}

ImageFolder::ImageFolder(fs::path path, std::span<const std::string> classes)
    : path_(std::move(path)), classes_(classes.begin(), classes.end()) {
  open_remote();
  const std::vector<std::string> found =
      remote_.empty() ? classes_in(path_) : folders_among(remote_, path_);
  if (classes_.empty()) classes_ = found;
  for (const std::string& name : found) {
    if (std::ranges::find(classes_, name) != classes_.end()) continue;
    const auto near = nearest(name, classes_);
    throw DataError(shown_path(path_ / name) + " is the folder of no class" +
                        (near ? "; did you mean " + quote(*near) + "?" : ""),
                    "the classes are those of data.classes, or else the folders of data.path");
  }
  std::vector<std::string> others;
  for (std::size_t label = 0; label < classes_.size(); ++label) {
    if (!std::ranges::binary_search(found, classes_[label])) continue;
    list(static_cast<std::int32_t>(label), others);
  }
  remote_.clear();
  note_left_out(others);
}

// Lists once. The options of a URL hold for its bucket from then on, so that paths go without.
void ImageFolder::open_remote() {
  if (!is_remote(path_.native())) return;
  remote_ = remote_files(path_);
  const std::string& url = path_.native();
  path_ = with_s3_scheme(url.substr(0, url.find('?')));
}

ImageFolder ImageFolder::without_classes(const fs::path& path) {
  if (is_remote(path.native())) {
    ImageFolder folder(path);
    folder.open_remote();
    folder.classes_ = {""};
    std::vector<std::string> others;
    folder.list(0, others);
    folder.note_left_out(others);
    return folder;
  }
  std::error_code error;
  if (fs::is_regular_file(path, error) && has_image_name(path.filename().string())) {
    ImageFolder one(path.parent_path());
    one.classes_ = {""};
    one.files_ = {{0, path.filename().string()}};
    return one;
  }
  (void)entries_of(path);  // throws where it is no folder
  ImageFolder folder(path);
  folder.classes_ = {""};  // the folder itself
  std::vector<std::string> others;
  folder.list(0, others);
  folder.note_left_out(others);
  return folder;
}

void ImageFolder::note_left_out(const std::vector<std::string>& others) {
  if (others.empty()) return;
  left_out_ = plural(std::ssize(others), "file") + " in " + shown_path(path_) +
              " left out, the first is " + quote(others.front()) +
              ": images end in .jpg, .jpeg or .png";
}

void ImageFolder::list(std::int32_t label, std::vector<std::string>& others) {
  const std::string& name = classes_[static_cast<std::size_t>(label)];
  Walk walk;
  if (remote_.empty()) walk.enter(path_ / name, "");
  const std::string below = name.empty() ? "" : name + "/";
  for (const auto& [each, size] : remote_) {
    if (!each.starts_with(below)) continue;
    (has_image_name(each) ? walk.images : walk.others).push_back(each.substr(below.size()));
  }
  if (walk.images.empty()) {
    throw DataError("there is no image in " + shown_path(name.empty() ? path_ : path_ / name),
                    name.empty()
                        ? "images end in .jpg, .jpeg or .png"
                        : "images end in .jpg, .jpeg or .png; remove the folder if it is no class");
  }
  std::ranges::sort(walk.images);
  for (std::string& image : walk.images) {
    const auto found = remote_.find(below + image);
    const std::int64_t bytes = found != remote_.end() ? found->second : 0;
    files_.push_back({label, std::move(image), bytes});
  }
  for (const std::string& other : walk.others) others.push_back((fs::path(name) / other).string());
}

}  // namespace troika
