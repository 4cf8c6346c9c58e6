// Where the flight recorders of a job's ranks lie: a folder that the user names, or a private one
// that is kept only where it has something to tell of a job that has failed.
#pragma once

#include <filesystem>

namespace troika {

class RecorderFolder {
 public:
  // Made if it is missing. Empty: a fresh one among the temporary files that only this user may
  // enter; none where that cannot be made, as a job can do without. Throws StorageError where the
  // folder that is named cannot be made.
  explicit RecorderFolder(const std::filesystem::path& named);
  RecorderFolder(const RecorderFolder&) = delete;
  RecorderFolder& operator=(const RecorderFolder&) = delete;
  // Removes a private one, unless it is to be kept.
  ~RecorderFolder();

  // Absolute; empty if there is none.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Whether any rank has begun an operation.
  [[nodiscard]] bool has_operations() const;
  // Keeps a private one, and removes all but the newest three that failed jobs of this user have
  // left.
  void keep();

 private:
  std::filesystem::path path_;
  bool removed_at_end_ = false;
};

}  // namespace troika
