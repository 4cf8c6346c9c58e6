// Calls a server: connects, sends a request and waits for its reply until the deadline.
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/rpc/call_threads.h>
#include <troika/rpc/client_call.h>
#include <troika/rpc/client_messages.h>
#include <troika/rpc/library.h>
#include <troika/rpc/rpc.h>
#include <troika/rpc/segments.h>
#include <troika/rpc/tls_files.h>

#include <functional>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace troika {
namespace {

using rpc_plugin::Ending;
using rpc_plugin::Phase;

void check_request(std::string_view method, const RpcMessage& request) {
  if (method.empty() || method.size() > kMostMethodBytes) {
    throw UsageError("the name of a method has 1 to " + std::to_string(kMostMethodBytes) +
                     " bytes, and " + quote(method) + " has " + std::to_string(method.size()));
  }
  if (request.header.size() > kMostHeaderBytes) {
    throw UsageError("the header of " + quote(method) + " has " +
                         std::to_string(request.header.size()) + " bytes, where " +
                         std::to_string(kMostHeaderBytes) + " are allowed",
                     "send the rest in the body");
  }
}

std::string_view describe(Phase phase) {
  switch (phase) {
    case Phase::kConnecting:
      return "while connecting";
    case Phase::kSending:
      return "while sending the request";
    case Phase::kWaiting:
      return "while waiting for the reply";
    case Phase::kReceiving:
      return "while receiving the reply";
  }
  return "";
}

bool says(std::string_view reason, std::string_view words) {
  return reason.find(words) != std::string_view::npos;
}

// Returns what to do about a connection that was not made, or lost.
std::string connection_hint(std::string_view reason, bool with_tls) {
  if (with_tls && says(reason, "wrong version number")) {
    return "the server seems to be one without TLS: leave TLS out here, or give it its files";
  }
  if (with_tls && (says(reason, "certificate verify failed") || says(reason, "CERTIFICATE") ||
                   says(reason, "Hostname Verification") || says(reason, "Peer name"))) {
    return "the server's certificate has to be signed by the authority given here, and to name "
           "the host or address that is called";
  }
  if (says(reason, "onnection refused")) return "is the server running, and is the port right?";
  if (with_tls) {
    return "is the certificate given here signed by the server's authority? A server that refuses "
           "it just closes the connection";
  }
  return "has the server ended? One that demands TLS closes connections without it, too";
}

}  // namespace

class RpcClient::Impl {
 public:
  Impl(std::string address, const RpcClientOptions& options)
      : address_(std::move(address)),
        where_(detail::parse_rpc_address(address_, 1)),
        tls_(detail::read_tls(options.tls)),
        most_body_bytes_(options.most_body_bytes),
        share_memory_(options.share_memory) {
    static_cast<void>(connection());  // a certificate that cannot be used is known now
  }

  RpcReply call(std::string_view method, const RpcMessage& request, const Deadline& deadline,
                std::span<std::byte> into) {
    check_request(method, request);
    const bool suits =
        share_memory_ && (detail::suits_segment(detail::total_bytes(request.body)) ||
                          detail::suits_segment(into.size()) || has_large_replies(method));
    // A server that has been started again knows no segment; another that is attached then does.
    for (int tries_left = suits ? 2 : 0;; --tries_left) {
      std::unique_ptr<detail::OwnSegment> segment;
      if (tries_left > 0) {
        segment =
            segments_.take([&](const std::string& name) { return attach(name, method, deadline); });
      }
      const auto done =
          carry_out(detail::RequestKind::kCall, method, request, deadline, into, segment.get());
      detail::ArrivingReply& reply = done->reply();
      if (reply.segment_is_unknown() && segment) {
        segments_.forget();
        continue;
      }
      if (reply.could_use_segment()) remember_large_reply(method);
      // The error of a handler leaves the segment as good as its reply does.
      const Returned returned(segments_, std::move(segment));
      return reply.finish();
    }
  }

  void cancel() {
    const std::lock_guard lock(mutex_);
    for (detail::ClientCall* call : calls_) call->cancel();
    if (connection_) connection_->cancel();
  }

 private:
  // Gives a segment back at the end of its scope.
  class Returned {
   public:
    Returned(detail::ClientSegments& all, std::unique_ptr<detail::OwnSegment> segment)
        : all_(all), segment_(std::move(segment)) {}
    ~Returned() { all_.give_back(std::move(segment_)); }
    Returned(const Returned&) = delete;
    Returned& operator=(const Returned&) = delete;

   private:
    detail::ClientSegments& all_;
    std::unique_ptr<detail::OwnSegment> segment_;
  };

  // A call that cancel() reaches.
  class Registered {
   public:
    Registered(Impl& owner, detail::ClientCall* call) : owner_(owner), call_(call) {
      const std::lock_guard lock(owner_.mutex_);
      owner_.calls_.push_back(call_);
    }
    ~Registered() {
      const std::lock_guard lock(owner_.mutex_);
      std::erase(owner_.calls_, call_);
    }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;

   private:
    Impl& owner_;
    detail::ClientCall* call_;
  };

  // Sends a request, and returns the call once all of the reply has arrived. Throws how it ended
  // otherwise.
  std::shared_ptr<detail::ClientCall> carry_out(detail::RequestKind kind, std::string_view method,
                                                const RpcMessage& request, const Deadline& deadline,
                                                std::span<std::byte> into,
                                                const detail::OwnSegment* segment) {
    const auto call = std::make_shared<detail::ClientCall>(
        detail::OutgoingRequest(kind, method, request, segment),
        detail::ArrivingReply("the reply of " + address_ + " to " + quote(method), most_body_bytes_,
                              into, segment));
    const auto used = connection();
    const Registered registered(*this, call.get());
    threads_.run(
        [call, used, seconds = deadline.left().count()] { call->carry_out(*used, seconds); });
    const detail::CallEnd end = call->wait(deadline);
    if (end.ending == Ending::kDone || end.ending == Ending::kStopped) return call;
    if (end.ending == Ending::kLost || end.left_behind) drop(used);
    throw_end(end, method, deadline);
  }

  // Asks the server whether it finds a segment. `method` is for messages.
  bool attach(const std::string& name, std::string_view method, const Deadline& deadline) {
    RpcMessage request;
    request.header = name;
    const auto done =
        carry_out(detail::RequestKind::kAttach, method, request, deadline, {}, nullptr);
    return done->reply().finish().header == detail::kAttached;
  }

  [[nodiscard]] bool has_large_replies(std::string_view method) {
    const std::lock_guard lock(mutex_);
    return large_replies_.contains(method);
  }
  void remember_large_reply(std::string_view method) {
    constexpr std::size_t kMost = 64;
    const std::lock_guard lock(mutex_);
    if (large_replies_.size() < kMost) large_replies_.emplace(method);
  }

  std::shared_ptr<rpc_plugin::Connection> connection() {
    const std::lock_guard lock(mutex_);
    if (connection_) return connection_;
    std::string reason;
    connection_ = detail::rpc_library().connect(where_.host, where_.port, tls_ ? &*tls_ : nullptr,
                                                [&](std::string_view text) { reason = text; });
    if (!connection_) throw UsageError("cannot call " + address_ + ": " + reason);
    return connection_;
  }

  // The next call connects anew, and does not wait for as long as gRPC would between two attempts.
  void drop(const std::shared_ptr<rpc_plugin::Connection>& lost) {
    const std::lock_guard lock(mutex_);
    if (connection_ != lost) return;
    connection_.reset();
    segments_.forget();
  }

  [[noreturn]] void throw_end(const detail::CallEnd& end, std::string_view method,
                              const Deadline& deadline) const {
    const std::string call = quote(method) + " of " + address_;
    const std::string phase(describe(end.phase));
    switch (end.ending) {
      case Ending::kRefused: {
        const Failure failure = decode_failure(end.reason);
        throw_failure({failure.code,
                       address_ + " refuses " + quote(method) + ": " + failure.message,
                       failure.hint, failure.secondary});
      }
      case Ending::kLate:
        throw DeadlineError(call + " has not answered in " +
                            format_duration(deadline.timeout().count()) + ": the deadline passed " +
                            phase);
      case Ending::kCancelled:
        throw PeerError(call + " was cancelled " + phase);
      default:
        throw PeerError(
            (end.phase == Phase::kConnecting ? "cannot connect for " + call
                                             : "lost the connection of " + call + " " + phase) +
                ": " + end.reason,
            connection_hint(end.reason, tls_.has_value()));
    }
  }

  std::string address_;
  detail::RpcAddress where_;
  std::optional<rpc_plugin::Tls> tls_;
  std::uint64_t most_body_bytes_;
  bool share_memory_;
  detail::CallThreads threads_;
  detail::ClientSegments segments_;
  std::mutex mutex_;
  std::shared_ptr<rpc_plugin::Connection> connection_;  // null after it was lost
  std::vector<detail::ClientCall*> calls_;              // under way
  std::set<std::string, std::less<>> large_replies_;    // methods that have had them
};

RpcClient::RpcClient(std::string address, const RpcClientOptions& options)
    : impl_(std::make_unique<Impl>(std::move(address), options)) {}

RpcClient::~RpcClient() = default;

RpcReply RpcClient::call(std::string_view method, const RpcMessage& request, Deadline deadline,
                         std::span<std::byte> into) {
  return impl_->call(method, request, deadline, into);
}

void RpcClient::cancel() {
  impl_->cancel();
}

}  // namespace troika
