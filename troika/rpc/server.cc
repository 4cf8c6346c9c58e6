// Receives requests, gives them to the handler, and sends the replies.
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/time.h>
#include <troika/base/units.h>
#include <troika/observe/log.h>
#include <troika/rpc/body_chunks.h>
#include <troika/rpc/library.h>
#include <troika/rpc/received_body.h>
#include <troika/rpc/refusal_notice.h>
#include <troika/rpc/rpc.h>
#include <troika/rpc/segments.h>
#include <troika/rpc/tls_files.h>
#include <troika/rpc/wire.h>

#include <exception>
#include <mutex>
#include <utility>

namespace troika {
namespace {

using rpc_plugin::Incoming;

// A request as it has arrived.
struct Received {
  detail::RequestKind kind = detail::RequestKind::kCall;
  std::string segment_name;
  std::shared_ptr<detail::PeerSegment> segment;  // null if it names none, or one that is unknown
  RpcRequest request;
  std::shared_ptr<std::byte> memory;  // of the body

  [[nodiscard]] bool segment_is_unknown() const { return !segment_name.empty() && !segment; }
};

void check_size(const detail::RequestOpening& opening, std::uint64_t most_body_bytes) {
  if (opening.body_bytes <= most_body_bytes) return;
  throw UsageError("a body of " + format_bytes(opening.body_bytes) + " for " +
                       quote(opening.method) + ", where the server takes " +
                       format_bytes(most_body_bytes),
                   "RpcServerOptions::most_body_bytes is the limit");
}

// Sends a reply. That its caller has gone concerns nobody here.
void send(Incoming& incoming, const RpcMessage& reply, detail::PeerSegment* segment) {
  detail::ReplyOpening opening;
  opening.header = reply.header;
  opening.body_bytes = detail::total_bytes(reply.body);
  const bool suits = segment != nullptr && detail::suits_segment(opening.body_bytes);
  const bool written = suits && segment->memory()->write(reply.body);
  if (written) opening.carrier = detail::BodyCarrier::kSegment;
  detail::BodyChunks chunks(written ? std::span<const std::span<const std::byte>>() : reply.body);
  std::optional<std::span<const std::byte>> chunk = chunks.next();
  if (chunk && opening.body_bytes <= detail::kInlineBytes) {
    opening.body_start = *chunk;
    chunk.reset();
  }
  bool there = incoming.send(detail::encode(opening));
  while (there && chunk) {
    there = incoming.send(*chunk);
    chunk = chunks.next();
  }
}

void send_unknown_segment(Incoming& incoming) {
  detail::ReplyOpening opening;
  opening.status = detail::ReplyStatus::kUnknownSegment;
  static_cast<void>(incoming.send(detail::encode(opening)));
}

void send_error(Incoming& incoming, const std::exception& error) {
  const detail::EncodedError encoded = detail::encode_error(error);
  detail::ReplyOpening opening;
  opening.status = encoded.status;
  opening.header = encoded.text;
  static_cast<void>(incoming.send(detail::encode(opening)));
}

void check_reply(const RpcMessage& reply, std::string_view method) {
  if (reply.header.size() <= kMostHeaderBytes) return;
  throw InternalError("internal error: the reply to " + quote(method) + " has a header of " +
                      std::to_string(reply.header.size()) + " bytes, where " +
                      std::to_string(kMostHeaderBytes) + " are allowed");
}

}  // namespace

class RpcServer::Impl {
 public:
  Impl(const RpcServerOptions& options, Handler handler)
      : most_body_bytes_(options.most_body_bytes), handler_(std::move(handler)) {
    const auto [host, port] = detail::parse_rpc_address(options.listen, 0);
    const auto tls = detail::read_tls(options.tls);
    std::string reason;
    const auto accept = [this](Incoming& incoming, const rpc_plugin::TakeText& refuse) {
      answer(incoming, refuse);
    };
    server_ = detail::rpc_library().serve(host, port, tls ? &*tls : nullptr, accept,
                                          [&](std::string_view text) { reason = text; });
    if (server_ == nullptr) {
      throw RendezvousError("cannot listen on " + options.listen + " for requests: " + reason,
                            port != 0 ? "another port, or 0 for any free one" : "");
    }
  }

  [[nodiscard]] int port() const { return server_->port(); }

 private:
  // Receives a request to its end. Throws DataError if it is malformed, UsageError if it is too
  // large.
  Received receive(Incoming& incoming) {
    const std::string source = "the request of " + std::string(incoming.peer());
    const auto first = incoming.next();
    if (!first) throw DataError(source + " is empty");
    const detail::RequestOpening opening = detail::decode_request(*first, source);
    check_size(opening, most_body_bytes_);
    Received received;
    received.kind = opening.kind;
    received.segment_name = opening.segment;
    if (!opening.segment.empty()) received.segment = segments_.find(opening.segment);
    received.request.method = opening.method;
    received.request.header = opening.header;
    received.request.peer = incoming.peer();
    received.request.abandoned = [&incoming] { return incoming.abandoned(); };
    const bool in_segment = opening.carrier == detail::BodyCarrier::kSegment;
    if (in_segment && received.segment_is_unknown()) {
      static_cast<void>(incoming.next());  // the end, unless the caller does not keep to the rules
      return received;
    }
    detail::ReceivedBody body(opening.body_bytes, memory_.take(opening.body_bytes), source);
    received.memory = body.memory();
    received.request.body = body.bytes();
    body.append(opening.body_start);
    while (const auto chunk = incoming.next()) {
      if (in_segment) throw DataError(source + ": a body in shared memory goes on in the stream");
      body.append(*chunk);
    }
    if (in_segment) {
      body.read(*received.segment->memory());
    } else {
      body.finish();
    }
    return received;
  }

  void answer(Incoming& incoming, const rpc_plugin::TakeText& refuse) {
    Received received;
    try {
      received = receive(incoming);
    } catch (const std::exception& error) {
      // What is cut off is no fault of the caller's, which may ask again.
      const PeerError lost("the connection was lost, or the server stops, amid the request");
      if (!incoming.broken()) note_refused(incoming.peer(), error.what());
      refuse(detail::encode_error(incoming.broken() ? lost : error).text);
      return;
    }
    if (received.segment_is_unknown()) {
      send_unknown_segment(incoming);
      return;
    }
    try {
      const RpcMessage reply = reply_to(received);
      check_reply(reply, received.request.method);
      send(incoming, reply, received.segment.get());
    } catch (const std::exception& error) {
      send_error(incoming, error);
    } catch (...) {
      send_error(incoming,
                 InternalError("internal error: the handler of " + quote(received.request.method) +
                               " has thrown what is no exception"));
    }
  }

  // What is no request costs a job nothing, and whoever sends it may not read the refusal.
  void note_refused(std::string_view peer, std::string_view reason) {
    const Seconds now = Clock::now().time_since_epoch();
    std::optional<std::string> line;
    {
      const std::lock_guard lock(refusals_mutex_);
      line = refusals_.add(peer, reason, now.count());
    }
    if (line) log_warning(*line);
  }

  RpcMessage reply_to(const Received& received) {
    if (received.kind == detail::RequestKind::kCall) return handler_(received.request);
    RpcMessage reply;
    if (segments_.attach(received.request.header)) reply.header = detail::kAttached;
    return reply;
  }

  std::uint64_t most_body_bytes_;
  Handler handler_;
  std::mutex refusals_mutex_;
  detail::RefusalNotice refusals_;
  detail::BodyMemory memory_;
  detail::ServerSegments segments_;
  std::unique_ptr<rpc_plugin::Server> server_;  // goes first: it ends the calls
};

RpcServer::RpcServer(const RpcServerOptions& options, Handler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {}

RpcServer::~RpcServer() = default;

int RpcServer::port() const {
  return impl_->port();
}

}  // namespace troika
