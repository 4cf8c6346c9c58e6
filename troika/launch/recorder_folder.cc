#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/launch/recorder_folder.h>
#include <troika/observe/snapshot.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "troika-flight";
constexpr std::string_view kKept = "kept";  // a file in a folder that a job has left on purpose

// Whether this user's job has left it. Others may put anything among the temporary files.
bool is_kept_folder(const fs::path& path) {
  struct stat facts {};
  return path.filename().string().starts_with(kPrefix) && ::lstat(path.c_str(), &facts) == 0 &&
         S_ISDIR(facts.st_mode) && facts.st_uid == ::geteuid() &&
         ::access((path / kKept).c_str(), F_OK) == 0;
}

// Leaves the newest of what failed jobs have left in `parent`.
void remove_older_folders(const fs::path& parent) {
  constexpr std::size_t kMost = 3;
  std::vector<std::pair<fs::file_time_type, fs::path>> kept;
  std::error_code error;
  for (fs::directory_iterator each(parent, error), end; !error && each != end;
       each.increment(error)) {
    if (is_kept_folder(each->path()))
      kept.emplace_back(fs::last_write_time(each->path() / kKept, error), each->path());
  }
  std::ranges::sort(kept, std::ranges::greater());
  for (std::size_t i = kMost; i < kept.size(); ++i) fs::remove_all(kept[i].second, error);
}

}  // namespace

RecorderFolder::RecorderFolder(const fs::path& named) {
  if (!named.empty()) {
    make_folders(named);
    path_ = fs::absolute(named);  // a rank may go to another folder
    return;
  }
  try {
    path_ = fs::absolute(make_temporary_folder(kPrefix));
    removed_at_end_ = true;
    // A job can do without. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const StorageError&) {
  }
}

RecorderFolder::~RecorderFolder() {
  std::error_code ignored;  // what is left is among the temporary files
  if (removed_at_end_) fs::remove_all(path_, ignored);
}

bool RecorderFolder::has_operations() const {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const auto snapshot = take_snapshot(entry.path());
    if (snapshot && snapshot->recording.count > 0) return true;
  }
  return false;
}

void RecorderFolder::keep() {
  if (!removed_at_end_) return;
  removed_at_end_ = false;
  std::ofstream(path_ / kKept) << "of a job that has failed\n";
  remove_older_folders(path_.parent_path());
}

}  // namespace troika
