// Internal: what troika takes of Arrow Flight, which is a plug-in: a stream of messages each way
// for every call. No type of Arrow's passes, and no exception.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troika::rpc_plugin {

// Contents of PEM files.
struct Tls {
  std::string certificate;
  std::string key;
  std::string authority;
};

using Bytes = std::span<const std::byte>;
// Receives a text, as the two sides may have different allocators. It lasts until it returns.
using TakeText = std::function<void(std::string_view)>;
// Receives the next message, which lasts until it returns. Returns false to receive no more.
using TakeMessage = std::function<bool(Bytes)>;
// Returns the next message to send, which lasts until the next call; nothing at the end.
using NextMessage = std::function<std::optional<Bytes>()>;

// Says how far a call has come.
enum class Phase { kConnecting, kSending, kWaiting, kReceiving };

// Says how a call ended.
enum class Ending {
  kDone,       // all messages of both sides have passed
  kStopped,    // take() has returned false
  kRefused,    // by the server, for the reason that it passed to `refuse`
  kLate,       // the time is over
  kCancelled,  // by cancel()
  kLost        // not connected, or not any more
};

// A call: all messages of `next` are sent before the first is passed to `take`. `reach` is told of
// each phase as it begins.
struct Exchange {
  double seconds = 0;
  NextMessage next;
  TakeMessage take;
  std::function<void(Phase)> reach;
};

// A connection to a server. Thread safe.
class Connection {
 public:
  virtual ~Connection() = default;
  // Carries out a call. The reason of an ending other than kDone is passed to `error`. It may last
  // for longer than its seconds, and than cancel(), while the peer takes nothing of what is sent.
  [[nodiscard]] virtual Ending exchange(const Exchange& exchange, const TakeText& error) = 0;
  // Ends the calls under way.
  virtual void cancel() = 0;
};

// A call that a server has received.
class Incoming {
 public:
  virtual ~Incoming() = default;
  [[nodiscard]] virtual std::string_view peer() const = 0;
  // Returns whether the caller has gone, or the server stops.
  [[nodiscard]] virtual bool abandoned() const = 0;
  // Returns the next message, which lasts until the next call; nothing after the last one, and when
  // the caller has gone.
  [[nodiscard]] virtual std::optional<Bytes> next() = 0;
  // Returns whether next() has ended since the connection was lost, or the server stops.
  [[nodiscard]] virtual bool broken() const = 0;
  // Sends a message. Returns false if the caller has gone.
  [[nodiscard]] virtual bool send(Bytes message) = 0;
};

// Handles a call on a thread of its own. Passes a reason to `refuse` to end it with that; messages
// that have been sent may not arrive then.
using Accept = std::function<void(Incoming&, const TakeText& refuse)>;

// A server, until it is destroyed. That ends the calls, and waits for accept() to return.
class Server {
 public:
  virtual ~Server() = default;
  [[nodiscard]] virtual int port() const = 0;
};

class RpcPlugin {
 public:
  virtual ~RpcPlugin() = default;
  // Listens, without TLS where that is null. Returns null after it has passed the reason to
  // `error`.
  [[nodiscard]] virtual std::unique_ptr<Server> serve(const std::string& host, int port,
                                                      const Tls* tls, Accept accept,
                                                      const TakeText& error) const = 0;
  // Returns a connection that is made with the first call, or null after it has passed the reason
  // to `error`.
  [[nodiscard]] virtual std::unique_ptr<Connection> connect(const std::string& host, int port,
                                                            const Tls* tls,
                                                            const TakeText& error) const = 0;
};

inline constexpr const char* kFile = "libtroika_flight.so";
using PluginEntry = const RpcPlugin* (*)();
inline constexpr const char* kPluginEntry = "troika_rpc_plugin";

}  // namespace troika::rpc_plugin
