#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/rendezvous/store_watch.h>

#include <atomic>
#include <thread>

namespace troika {

std::string abort_key(int rank) {
  return "abort/" + std::to_string(rank);
}

struct StoreWatch::State {
  Store waiting;  // held by the thread
  Store waking;   // for the destructor
  std::string key;
  Callback on_value, on_lost;
  std::atomic<bool> ending = false;
  std::thread thread;

  // Where the store is gone, so is the thread's wait.
  bool wake() {
    try {
      waking.set(key, "");
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void run() {
    // Waits in turns only because no wait may be without a deadline.
    try {
      while (!waiting.wait({key}, Deadline::in(failure_timing::kWatchTurn))) {
      }
      const std::string value = waiting.get_all({key}).front();
      if (!ending) on_value(value);
    } catch (const Error& error) {
      if (!ending) on_lost(error.what());
    }
  }
};

StoreWatch::StoreWatch(const Store& store, std::string key, Callback on_value, Callback on_lost)
    : state_(new State{store.clone(),
                       store.clone(),
                       std::move(key),
                       std::move(on_value),
                       std::move(on_lost),
                       false,
                       {}}) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

StoreWatch::~StoreWatch() {
  state_->ending = true;
  state_->wake();
  state_->thread.join();
}

}  // namespace troika
