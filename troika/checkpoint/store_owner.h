// Who writes to a place in an object store. A store has no locks, so a run leaves a mark there and
// changes it every few seconds, as long as it lives: another run finds it, and is refused.
#pragma once

#include <troika/base/time.h>
#include <troika/storage/object_store.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace troika {

// The name of the mark below the place.
inline constexpr const char* kOwnerMark = "owner/mark";

// Says which process has left a mark.
struct OwnerMark {
  std::string holder;     // "process 4711 on host a", for messages
  std::string processes;  // the same for processes that see each other by number
  std::int64_t pid = 0;
  std::string started;  // when that process was started, as /proc says it
  std::int64_t heartbeats = 0;

  bool operator==(const OwnerMark&) const = default;
};

// Returns the mark of this process.
[[nodiscard]] OwnerMark make_owner_mark();
// Write and read the text of a mark, a line a field. One that is no mark is read as nothing.
[[nodiscard]] std::string format_mark(const OwnerMark& mark);
[[nodiscard]] std::optional<OwnerMark> parse_mark(std::string_view text);
// Returns whether two marks are of one process, whatever their beats.
[[nodiscard]] bool is_of_one_process(const OwnerMark& a, const OwnerMark& b);
// Returns whether the process of a mark lives; nothing where it is not of this host.
[[nodiscard]] std::optional<bool> lives_here(const OwnerMark& mark);

// While it lives, the place is this process's. Methods are thread safe.
class StoreOwner {
 public:
  static constexpr Seconds kHeartbeatInterval{5};
  // The time that a mark of another host may stay as it is before its run counts as dead.
  static constexpr Seconds kPatience{15};

  // Takes the place. Waits `patience` at most, where another host has left a mark. Throws
  // UsageError naming its holder where that lives, with `hint`; DataError, StorageError.
  StoreOwner(const ObjectStore& store, std::string hint, Seconds patience = kPatience);
  StoreOwner(const StoreOwner&) = delete;
  StoreOwner& operator=(const StoreOwner&) = delete;
  // Removes the mark.
  ~StoreOwner();

  // Throws StorageError where another run has taken the place meanwhile, as it may while this
  // process is stopped.
  void check() const;

 private:
  void wait_for_other(const std::string& found, Seconds patience) const;
  [[nodiscard]] std::optional<std::string> read() const;
  [[nodiscard]] bool is_ours(const std::string& text) const;
  void send_heartbeats(const std::stop_token& stop);

  ObjectStore store_;
  std::string hint_;
  OwnerMark mark_;
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace troika
