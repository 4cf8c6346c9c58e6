// A client's connection over Arrow Flight.
#include <arrow/buffer.h>
#include <arrow/flight/client.h>
#include <troika/rpc/flight/plugin.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace troika::rpc_plugin {
namespace {

namespace flight = arrow::flight;

// A call under way. Its reader is what cancels it, and is not there while it connects.
struct Active {
  flight::FlightStreamReader* reader = nullptr;
  bool cancelled = false;
};

// Returns the part of gRPC's text that says why.
std::string plain_reason(std::string_view text) {
  for (const std::string_view end :
       {". gRPC client debug context", ". Client context", ". Detail:"}) {
    text = text.substr(0, text.find(end));
  }
  for (const std::string_view begin :
       {"with message: ", "last error: ", "UNKNOWN: ", "UNAVAILABLE: "}) {
    const std::size_t at = text.find(begin);
    if (at != std::string_view::npos) text.remove_prefix(at + begin.size());
  }
  std::string line(text.substr(0, std::min<std::size_t>(text.find('\n'), 500)));
  while (line.ends_with('.') || line.ends_with(' ')) line.pop_back();
  return line.empty() ? "the connection was closed" : line;
}

class FlightConnection final : public Connection {
 public:
  explicit FlightConnection(std::unique_ptr<flight::FlightClient> client)
      : client_(std::move(client)) {}

  [[nodiscard]] Ending exchange(const Exchange& exchange, const TakeText& error) override {
    Active active;
    {
      const std::lock_guard lock(mutex_);
      active_.push_back(&active);
    }
    bool stopped = false;
    const arrow::Status status = carry_out(exchange, active, stopped);
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      std::erase(active_, &active);
      cancelled = active.cancelled;
    }
    if (stopped) return Ending::kStopped;
    if (status.ok()) return Ending::kDone;
    return ending_of(status, cancelled, error);
  }

  void cancel() override {
    const std::lock_guard lock(mutex_);
    for (Active* active : active_) {
      active->cancelled = true;
      if (active->reader != nullptr) active->reader->Cancel();
    }
  }

 private:
  arrow::Status carry_out(const Exchange& exchange, Active& active, bool& stopped) {
    flight::FlightCallOptions options;
    options.timeout = flight::TimeoutDuration(exchange.seconds);
    exchange.reach(Phase::kConnecting);
    ARROW_ASSIGN_OR_RAISE(
        auto stream,
        client_->DoExchange(options, flight::FlightDescriptor::Command(std::string(kProtocol))));
    const arrow::Status passed = [&] {
      exchange.reach(Phase::kSending);
      ARROW_RETURN_NOT_OK(expose(active, stream.reader.get()));
      ARROW_RETURN_NOT_OK(send(exchange, *stream.writer));
      exchange.reach(Phase::kWaiting);
      return receive(exchange, *stream.reader, stopped);
    }();
    const bool ended = flight::FlightStatusDetail::UnwrapStatus(passed) != nullptr;
    if (stopped || (!passed.ok() && !ended)) stream.reader->Cancel();  // closing waits for the end
    static_cast<void>(expose(active, nullptr));
    // Closing returns what the server has ended the stream with. That is also the reason of a
    // message that could not be written.
    const arrow::Status closed = stream.writer->Close();
    return passed.ok() || is_refusal(closed) ? closed : passed;
  }

  arrow::Status expose(Active& active, flight::FlightStreamReader* reader) {
    const std::lock_guard lock(mutex_);
    active.reader = reader;
    return active.cancelled ? arrow::Status::Cancelled("cancelled") : arrow::Status::OK();
  }

  static arrow::Status send(const Exchange& exchange, flight::FlightStreamWriter& writer) {
    while (const auto message = exchange.next()) {
      // Copied as it is put together for the wire: gRPC may hold what it sends for longer than
      // the call lasts.
      ARROW_RETURN_NOT_OK(writer.WriteMetadata(
          std::make_shared<arrow::Buffer>(reinterpret_cast<const std::uint8_t*>(message->data()),
                                          static_cast<std::int64_t>(message->size()))));
    }
    return writer.DoneWriting();
  }

  static arrow::Status receive(const Exchange& exchange, flight::FlightStreamReader& reader,
                               bool& stopped) {
    bool receiving = false;
    while (true) {
      ARROW_ASSIGN_OR_RAISE(const flight::FlightStreamChunk chunk, reader.Next());
      if (chunk.data == nullptr && chunk.app_metadata == nullptr) return arrow::Status::OK();
      if (!std::exchange(receiving, true)) exchange.reach(Phase::kReceiving);
      const Bytes message =
          chunk.app_metadata == nullptr
              ? Bytes()
              : Bytes(reinterpret_cast<const std::byte*>(chunk.app_metadata->data()),
                      static_cast<std::size_t>(chunk.app_metadata->size()));
      stopped = !exchange.take(message);
      if (stopped) return arrow::Status::OK();
    }
  }

  static bool is_refusal(const arrow::Status& status) {
    const auto detail = flight::FlightStatusDetail::UnwrapStatus(status);
    return detail != nullptr && !detail->extra_info().empty();
  }

  static Ending ending_of(const arrow::Status& status, bool cancelled, const TakeText& error) {
    if (cancelled) return Ending::kCancelled;
    const auto detail = flight::FlightStatusDetail::UnwrapStatus(status);
    if (is_refusal(status)) {
      error(detail->extra_info());
      return Ending::kRefused;
    }
    error(plain_reason(status.message()));
    const bool late = detail != nullptr && detail->code() == flight::FlightStatusCode::TimedOut;
    return late ? Ending::kLate : Ending::kLost;
  }

  std::unique_ptr<flight::FlightClient> client_;
  std::mutex mutex_;
  std::vector<Active*> active_;
};

flight::FlightClientOptions options_of(const Tls* tls) {
  flight::FlightClientOptions options = flight::FlightClientOptions::Defaults();
  if (tls != nullptr) {
    options.tls_root_certs = tls->authority;
    options.cert_chain = tls->certificate;
    options.private_key = tls->key;
  }
  // A connection of its own, so that a new one is not held up by gRPC's memory of the last; no
  // proxy between the processes of a job; and an attempt to connect that ends.
  options.generic_options.emplace_back("grpc.use_local_subchannel_pool", 1);
  options.generic_options.emplace_back("grpc.enable_http_proxy", 0);
  options.generic_options.emplace_back("grpc.min_reconnect_backoff_ms", 10'000);
  return options;
}

}  // namespace

std::unique_ptr<Connection> make_connection(const std::string& host, int port, const Tls* tls,
                                            const TakeText& error) {
  const auto connect = [&]() -> arrow::Result<std::unique_ptr<flight::FlightClient>> {
    ARROW_ASSIGN_OR_RAISE(const auto location, location_of(host, port, tls));
    return flight::FlightClient::Connect(location, options_of(tls));
  };
  auto client = connect();
  if (client.ok()) return std::make_unique<FlightConnection>(std::move(*client));
  error(plain_reason(client.status().message()));
  return nullptr;
}

}  // namespace troika::rpc_plugin
