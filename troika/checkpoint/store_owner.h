// Who writes to a place in an object store. A store has no locks, so a run leaves a mark there and
// changes it every few seconds, as long as it lives: another run finds it, and is refused.
#pragma once

#include <troika/checkpoint/store_lease.h>
#include <troika/storage/object_store.h>

#include <memory>
#include <string>
#include <thread>

namespace troika {

// The name of the mark below the place.
inline constexpr const char* kOwnerMark = "owner/mark";

// While it lives, the place is this process's. Methods are thread safe.
class StoreOwner {
 public:
  // Takes the place. Waits StoreLease::kLongestTake where another host has left a mark, and longer
  // where the store is away meanwhile. Throws UsageError naming its holder where that lives, with
  // `hint`; DataError, StorageError.
  StoreOwner(const ObjectStore& store, std::string hint);
  StoreOwner(const StoreOwner&) = delete;
  StoreOwner& operator=(const StoreOwner&) = delete;
  // Removes the mark.
  ~StoreOwner();

  // Throws StorageError where another run has taken the place, as it may while this process is
  // stopped, or cannot reach the store.
  void check() const { place_.check(); }
  // Returns whether that has been found already. Asks no store.
  [[nodiscard]] bool is_lost() const { return place_.is_lost(); }

 private:
  void send_heartbeats(const std::stop_token& stop);

  std::unique_ptr<MarkFile> file_;
  mutable StoreLease place_;
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace troika
