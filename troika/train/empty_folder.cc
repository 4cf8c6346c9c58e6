#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/train/empty_folder.h>

namespace troika {

namespace fs = std::filesystem;

void make_empty_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_empty(folder, error)) {
    throw UsageError(shown_path(folder) + " is there already, and something is in it",
                     "give a new folder, or empty this one");
  }
  make_folders(folder);
}

}  // namespace troika
