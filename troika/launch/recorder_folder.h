// The folder of the flight recorders of a job's ranks: one that the user names, or a private one. A
// private one is kept only where it has something to show of a job that has failed.
#pragma once

#include <filesystem>

namespace troika {

class RecorderFolder {
 public:
  // Makes the folder if it is missing. Where `named` is empty, makes a fresh one among the
  // temporary files that only this user may enter. If that fails there is none, as a job can do
  // without. Throws StorageError where the folder that is named cannot be made.
  explicit RecorderFolder(const std::filesystem::path& named);
  RecorderFolder(const RecorderFolder&) = delete;
  RecorderFolder& operator=(const RecorderFolder&) = delete;
  // Removes a private one, unless it is to be kept.
  ~RecorderFolder();

  // Returns the absolute path; empty if there is none.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Returns whether any rank has begun an operation.
  [[nodiscard]] bool has_operations() const;
  // Keeps a private one, and removes all but the newest three that failed jobs of this user have
  // left.
  void keep();

 private:
  std::filesystem::path path_;
  bool removed_at_end_ = false;
};

}  // namespace troika
