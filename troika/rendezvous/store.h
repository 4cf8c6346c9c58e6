// The key-value store in which the ranks of a job meet: c10d's TCPStore, with deadlines and errors
// that name the endpoint. Processes share keys when they are connected to the same endpoint and
// give the same prefix.
#pragma once

#include <troika/base/time.h>
#include <troika/rendezvous/endpoint.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// One connection to the store. A blocking call holds it, so a second thread needs its own clone().
// Calls from several threads are safe but wait for each other. All calls throw RendezvousError when
// a deadline passes, and PeerError when the process that keeps the store is gone.
class Store {
 public:
  // Keeps the store in this process: a background thread serves it until the last handle goes.
  // Port 0 takes a free one. Throws RendezvousError naming the port when it is in use.
  [[nodiscard]] static Store host(std::uint16_t port, Reach reach);
  // Keeps the store in this process, on a port that is open already.
  [[nodiscard]] static Store host(ListeningSocket listening);
  // Connects to a store. Throws RendezvousError "no rendezvous at HOST:PORT after 5.0 s" with the
  // reason.
  [[nodiscard]] static Store connect(const Endpoint& endpoint, const Deadline& deadline);

  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();

  // Opens another connection to the same store and prefix, for another thread. Throws
  // RendezvousError where none is made within `timeout`.
  [[nodiscard]] Store clone() const;
  [[nodiscard]] Store clone(Seconds timeout) const;
  // Returns the same connection and prefix, for the same thread.
  [[nodiscard]] Store share() const;
  // Returns the same connection, with every key behind "prefix/".
  [[nodiscard]] Store with_prefix(std::string_view prefix) const;

  [[nodiscard]] const Endpoint& endpoint() const;

  void set(const std::string& key, std::string_view value);
  // Waits until the key is set, and returns its value.
  [[nodiscard]] std::string get(const std::string& key, const Deadline& deadline);
  // Waits until all keys are set; false when the deadline passes first.
  [[nodiscard]] bool wait(const std::vector<std::string>& keys, const Deadline& deadline);
  // Returns the values of keys that are known to be set, in order.
  [[nodiscard]] std::vector<std::string> get_all(const std::vector<std::string>& keys);
  // Adds to a counter that starts at 0, and returns the sum.
  std::int64_t add(const std::string& key, std::int64_t amount);
  [[nodiscard]] bool is_set(const std::string& key);

  // The state of the connection, for store_c10d.h.
  struct Handle;
  [[nodiscard]] const Handle& handle() const { return *handle_; }

 private:
  explicit Store(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

}  // namespace troika
