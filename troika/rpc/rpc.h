// Requests between processes: a server with a handler, and clients that call it by the name of a
// method. A message is a small header and a body of any size. Arrow Flight carries them, and gRPC
// underneath; it is a plug-in (libtroika_flight.so), loaded with the first server or client.
// Between processes of one user and one host, large bodies pass through memory instead, which those
// two alone have: with TLS, too, though not encrypted there. They find each other by a socket in
// /dev/shm; containers that do not share that use the network.
//
// Security. Without TlsFiles everyone who reaches the port may call the handler: use that inside a
// trusted network alone. With TlsFiles both sides present a certificate, and both refuse a peer
// whose certificate the authority has not signed. What passes is encrypted. Each side has three
// files in PEM: its certificate (with those between it and the authority, if there are any), the
// private key of it, without a passphrase, and the authority's certificate. The server's
// certificate has to name, as subjectAltName, the host or address by which clients call it. Keep
// the key readable by its owner alone, and the authority's own key on neither side. openssl makes
// them all (a line that is indented further goes on the one above):
//
//   openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj /CN=our-authority
//       -keyout authority.key -out authority.pem
//   openssl req -newkey rsa:3072 -nodes -subj /CN=node1 -keyout node1.key -out node1.csr
//   printf 'subjectAltName=DNS:node1,IP:10.0.0.1' > node1.ext
//   openssl x509 -req -in node1.csr -CA authority.pem -CAkey authority.key -CAcreateserial
//       -days 365 -extfile node1.ext -out node1.pem
#pragma once

#include <troika/base/time.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

inline constexpr std::size_t kMostMethodBytes = 128;
inline constexpr std::size_t kMostHeaderBytes = std::size_t{1} << 20;

// Paths of PEM files, as the opening comment describes them. All three are needed.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
};

// Holds what a caller or a handler sends.
struct RpcMessage {
  std::string header = {};                            // at most kMostHeaderBytes
  std::vector<std::span<const std::byte>> body = {};  // sent end to end; the sender's memory
  std::shared_ptr<const void> owner = {};             // owns the body; held until it is sent
};

// Holds what a handler is given. All of it lasts until the handler returns.
struct RpcRequest {
  std::string method;
  std::string header;
  std::span<const std::byte> body;  // aligned to 64 bytes
  std::string peer;                 // the caller's address, for messages
  std::function<bool()> abandoned;  // whether the caller has gone, or the server stops: a handler
                                    // that waits looks now and then, and returns
};

// Holds what a caller gets.
struct RpcReply {
  std::string header;
  std::span<const std::byte> body;  // lies in `owner` (aligned to 64 bytes), or in `into`
  std::shared_ptr<const void> owner;
};

inline constexpr std::uint64_t kMostBodyBytes = std::uint64_t{16} << 30;

struct RpcServerOptions {
  std::string listen = "0.0.0.0:0";  // ADDRESS:PORT, port 0 for any free one
  std::optional<TlsFiles> tls = {};
  std::uint64_t most_body_bytes = kMostBodyBytes;  // of a request
};

// Answers requests, each on a thread of its own, from its construction to its destruction.
class RpcServer {
 public:
  // Answers a request. Runs on several threads at once, and may wait for as long as it likes. An
  // exception that it throws is thrown at the caller: as the same type, if it is one of
  // <troika/base/error.h>.
  using Handler = std::function<RpcMessage(const RpcRequest&)>;

  // Listens. Throws UsageError where this build has no plug-in or TLS files cannot be used,
  // DataError for TLS files that cannot be read, and RendezvousError naming the address and the
  // reason if it cannot be listened on.
  RpcServer(const RpcServerOptions& options, Handler handler);
  // Stops. Callers of requests under way get a PeerError at once. Waits until the handlers have
  // returned: see RpcRequest::abandoned.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // Returns the port that it listens on.
  [[nodiscard]] int port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct RpcClientOptions {
  std::optional<TlsFiles> tls = {};
  std::uint64_t most_body_bytes = kMostBodyBytes;  // of a reply
  bool share_memory = true;  // pass bodies from 64 KiB to 1 GiB through memory on one host
};

// Calls one server. Connects with the first call, and with the next one after a connection is
// lost. Thread safe; calls of several threads share a connection. Destroy it after its calls.
class RpcClient {
 public:
  // Takes HOST:PORT, with brackets around an IPv6 address. Throws UsageError for another text,
  // where this build has no plug-in, or if TLS files cannot be used; DataError for TLS files that
  // cannot be read.
  explicit RpcClient(std::string address, const RpcClientOptions& options = {});
  ~RpcClient();
  RpcClient(const RpcClient&) = delete;
  RpcClient& operator=(const RpcClient&) = delete;

  // Sends a request, and returns the reply to it. If `into` is not empty, the reply's body is
  // written there and no other memory is taken; its size must be the body's, or a DataError names
  // both. What `into` holds after an error is undefined. Throws:
  // - what the handler threw;
  // - DeadlineError naming address and method when the deadline passes; the request may or may not
  //   have had its effect then;
  // - PeerError naming address, method and reason if the connection is refused or lost, or after
  //   cancel(); a hint tells of TLS where that may be the reason;
  // - UsageError for a method or header that is too long, or a body that the server refuses;
  // - DataError for a reply that is malformed, or larger than most_body_bytes.
  [[nodiscard]] RpcReply call(std::string_view method, const RpcMessage& request, Deadline deadline,
                              std::span<std::byte> into = {});

  // Ends the calls under way with a PeerError, within a tenth of a second. Later calls are not
  // concerned.
  void cancel();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troika
