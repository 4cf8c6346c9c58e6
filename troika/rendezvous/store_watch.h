// Waits in its own thread until a key is set, and passes the value to a callback. This is how the
// launcher notifies ranks, and launchers of other hosts, that the job has failed.
#pragma once

#include <troika/rendezvous/store.h>

#include <functional>
#include <memory>
#include <string>

namespace troika {

// Returns the key behind the job's prefix that the launcher sets for `rank` when the job has
// failed. The value is the reason.
[[nodiscard]] std::string abort_key(int rank);

class StoreWatch {
 public:
  // Watches a key. One callback runs once, in the watch's thread: `on_value` with the key's value,
  // or `on_lost` with the reason when the store itself is gone. It must not destroy the watch. The
  // key must have no other watcher: the destructor sets it to end the thread.
  using Callback = std::function<void(const std::string& value)>;
  StoreWatch(const Store& store, std::string key, Callback on_value, Callback on_lost);
  ~StoreWatch();
  StoreWatch(const StoreWatch&) = delete;
  StoreWatch& operator=(const StoreWatch&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troika
