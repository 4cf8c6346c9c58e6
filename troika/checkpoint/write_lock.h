// The right to write checkpoints to a place, for one program at a time. Two that write to one
// folder would remove each other's checkpoints, and go on from each other's values.
#pragma once

#include <troika/base/file.h>
#include <troika/checkpoint/store_owner.h>

#include <filesystem>
#include <memory>
#include <string>

namespace troika {

// Returns the file that is locked (flock) in a folder, and names host and process.
[[nodiscard]] std::filesystem::path lock_path(const std::filesystem::path& folder);

// Locks a folder of this host, which is there, until the descriptor is closed. Throws UsageError
// naming the process that has locked it, with `hint`; StorageError.
[[nodiscard]] UniqueFd lock_folder(const std::filesystem::path& folder, const std::string& hint);

// The treatment of a place that this process holds already.
enum class LockedHere { kRefused, kAllowed };

// Holds a folder, or a place behind a URL, as long as it lives. A file system without locks, and a
// folder in which nothing can be written, are held by no one: what writes there says so.
class WriteLock {
 public:
  // Makes the folder. Where another host has marked a store, waits for a sign that it still lives
  // (StoreOwner). Throws UsageError naming who holds the place, with `hint`; of a store DataError
  // and StorageError as well.
  WriteLock(const std::filesystem::path& place, const std::string& hint, LockedHere held_here);

  // Throws StorageError where another program has taken the place, since a mark in a store binds no
  // one. Thread safe.
  void check_ownership() const;
  // Returns whether that has been found already. Asks no store. Thread safe.
  [[nodiscard]] bool is_lost() const { return owner_ && owner_->is_lost(); }

 private:
  UniqueFd file_;
  std::unique_ptr<StoreOwner> owner_;
};

}  // namespace troika
