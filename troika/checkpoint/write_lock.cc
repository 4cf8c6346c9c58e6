#include <fcntl.h>
#include <sys/file.h>
#include <troika/base/error.h>
#include <troika/checkpoint/write_lock.h>
#include <troika/observe/machine.h>
#include <unistd.h>

#include <cerrno>
#include <span>

namespace troika {

namespace fs = std::filesystem;

namespace {

std::string name_of_process() {
  return "process " + std::to_string(getpid()) + " on host " + host_name();
}

}  // namespace

fs::path lock_path(const fs::path& folder) {
  return folder / ".lock";
}

UniqueFd lock_folder(const fs::path& folder, const std::string& hint) {
  const fs::path path = lock_path(folder);
  // Not truncated here: until the lock is taken, the text names another holder. The file is never
  // removed either, since a process that had it open would lock a file without a name.
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file.valid()) throw_storage_error("write", path, errno);
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    const std::string holder = name_of_process();
    if (ftruncate(file.get(), 0) != 0) throw_storage_error("write", path, errno);
    write_all(file.get(), std::as_bytes(std::span(holder)), path);
  } else if (errno == EWOULDBLOCK) {
    const std::string holder = read_file(path, 1 << 10);  // empty if it has come just now
    throw UsageError(shown_path(folder) + " is being written by " +
                         (holder.empty() ? "another process" : holder),
                     hint);
  }
  return file;  // unlocked where the file system has no locks
}

WriteLock::WriteLock(const fs::path& place, const std::string& hint, LockedHere held_here) {
  if (is_remote(place.native())) {
    owner_ = std::make_unique<StoreOwner>(ObjectStore(place.native()), hint);
    return;
  }
  try {
    make_folders(place);
    file_ = lock_folder(place, hint);
  } catch (const UsageError&) {
    const bool is_own = read_file(lock_path(place), 1 << 10) == name_of_process();
    if (!is_own || held_here == LockedHere::kRefused) throw;
    // The first checkpoint fails as well, and names the folder.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const StorageError&) {
  }
}

void WriteLock::check_ownership() const {
  if (owner_) owner_->check();
}

}  // namespace troika
