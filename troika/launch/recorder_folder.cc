#include <troika/base/file.h>
#include <troika/launch/recorder_folder.h>
#include <troika/observe/snapshot.h>

#include <cstdlib>
#include <string>
#include <system_error>

namespace troika {

RecorderFolder::RecorderFolder(const std::filesystem::path& named) {
  std::error_code error;
  if (!named.empty()) {
    make_folders(named);
    path_ = std::filesystem::absolute(named);  // a rank may go to another folder
    return;
  }
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) return;
  std::string name = (parent / "troika-flight-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return;  // with mode 0700
  path_ = std::filesystem::absolute(name);
  removed_at_end_ = true;
}

RecorderFolder::~RecorderFolder() {
  std::error_code ignored;  // what is left is among the temporary files
  if (removed_at_end_) std::filesystem::remove_all(path_, ignored);
}

bool RecorderFolder::has_operations() const {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    const auto snapshot = take_snapshot(entry.path());
    if (snapshot && snapshot->recording.count > 0) return true;
  }
  return false;
}

}  // namespace troika
