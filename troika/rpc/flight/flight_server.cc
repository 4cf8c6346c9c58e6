// A server over Arrow Flight, and the streams of its requests.
#include <arrow/buffer.h>
#include <arrow/flight/server.h>
#include <netdb.h>
#include <sys/socket.h>
#include <troika/rpc/flight/plugin.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace troika::rpc_plugin {
namespace {

namespace flight = arrow::flight;

// Returns "10.0.0.2:4711" for gRPC's "ipv4:10.0.0.2:4711", "[::1]:4711" for "ipv6:%5B::1%5D:4711".
std::string plain_peer(std::string peer) {
  for (const std::string_view prefix : {"ipv4:", "ipv6:"}) {
    if (peer.starts_with(prefix)) peer.erase(0, prefix.size());
  }
  for (const auto& [escaped, plain] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    const std::size_t at = peer.find(escaped);
    if (at != std::string::npos) peer.replace(at, 3, plain);
  }
  return peer;
}

class Stream final : public Incoming {
 public:
  Stream(const flight::ServerCallContext& context, flight::FlightMessageReader& reader,
         flight::FlightMessageWriter& writer)
      : context_(context), reader_(reader), writer_(writer), peer_(plain_peer(context.peer())) {}

  [[nodiscard]] std::string_view peer() const override { return peer_; }
  [[nodiscard]] bool abandoned() const override { return context_.is_cancelled(); }

  // A record batch has no place among our messages, and ends the stream: nothing of it is used.
  [[nodiscard]] std::optional<Bytes> next() override {
    auto read = reader_.Next();
    broken_ = !read.ok() || context_.is_cancelled();
    if (!read.ok() || read->data != nullptr || read->app_metadata == nullptr) return std::nullopt;
    message_ = std::move(read->app_metadata);
    return Bytes(reinterpret_cast<const std::byte*>(message_->data()),
                 static_cast<std::size_t>(message_->size()));
  }

  [[nodiscard]] bool broken() const override { return broken_; }

  // The message is copied as it is put together for the wire, so it need not outlive the call.
  [[nodiscard]] bool send(Bytes message) override {
    return writer_
        .WriteMetadata(
            std::make_shared<arrow::Buffer>(reinterpret_cast<const std::uint8_t*>(message.data()),
                                            static_cast<std::int64_t>(message.size())))
        .ok();
  }

 private:
  const flight::ServerCallContext& context_;
  flight::FlightMessageReader& reader_;
  flight::FlightMessageWriter& writer_;
  std::string peer_;
  bool broken_ = false;
  std::shared_ptr<arrow::Buffer> message_;
};

// Answers DoExchange. Flight answers every other method with "not implemented".
class Service final : public flight::FlightServerBase {
 public:
  explicit Service(Accept accept) : accept_(std::move(accept)) {}

  arrow::Status DoExchange(const flight::ServerCallContext& context,
                           std::unique_ptr<flight::FlightMessageReader> reader,
                           std::unique_ptr<flight::FlightMessageWriter> writer) override {
    const flight::FlightDescriptor& descriptor = reader->descriptor();
    if (descriptor.type != flight::FlightDescriptor::CMD || descriptor.cmd != kProtocol) {
      return arrow::Status::NotImplemented("this server answers requests of ", kProtocol);
    }
    std::string refusal;
    Stream stream(context, *reader, *writer);
    accept_(stream, [&](std::string_view reason) { refusal = reason.substr(0, kMostRefusal); });
    if (refusal.empty()) return arrow::Status::OK();
    return flight::MakeFlightError(flight::FlightStatusCode::Failed, "the request is refused",
                                   refusal);
  }

 private:
  static constexpr std::size_t kMostRefusal = 2000;  // what trailers of HTTP/2 hold

  Accept accept_;
};

class FlightServer final : public Server {
 public:
  explicit FlightServer(Accept accept) : service_(std::move(accept)) {}
  ~FlightServer() override {
    if (!started_) return;
    const auto now = std::chrono::system_clock::now();
    static_cast<void>(service_.Shutdown(&now));
    static_cast<void>(service_.Wait());
  }
  FlightServer(const FlightServer&) = delete;
  FlightServer& operator=(const FlightServer&) = delete;

  [[nodiscard]] arrow::Status start(const std::string& host, int port, const Tls* tls) {
    ARROW_ASSIGN_OR_RAISE(const auto location, location_of(host, port, tls));
    flight::FlightServerOptions options(location);
    if (tls != nullptr) {
      options.tls_certificates.push_back({tls->certificate, tls->key});
      options.verify_client = true;
      options.root_certificates = tls->authority;
    }
    ARROW_RETURN_NOT_OK(service_.Init(options));
    started_ = true;
    return arrow::Status::OK();
  }

  [[nodiscard]] int port() const override { return service_.port(); }

 private:
  Service service_;
  bool started_ = false;
};

// Returns why an address cannot be listened on; gRPC says so in its log alone.
std::string reason_of_bind(const std::string& host, int port, const Tls* tls) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) return gai_strerror(failed);
  std::string reason;
  const int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) {
    reason = std::strerror(errno);
  }
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  if (!reason.empty()) return reason;
  return tls != nullptr ? "TLS refuses certificate, key or authority: does the key belong to the "
                          "certificate?"
                        : "gRPC has not started";
}

}  // namespace

std::unique_ptr<Server> make_server(const std::string& host, int port, const Tls* tls,
                                    Accept accept, const TakeText& error) {
  auto server = std::make_unique<FlightServer>(std::move(accept));
  if (server->start(host, port, tls).ok()) return server;
  error(reason_of_bind(host, port, tls));
  return nullptr;
}

}  // namespace troika::rpc_plugin
