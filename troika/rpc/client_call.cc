#include <troika/rpc/client_call.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace troika::detail {

using rpc_plugin::Bytes;
using rpc_plugin::Ending;
using rpc_plugin::Phase;

ClientCall::ClientCall(OutgoingRequest request, ArrivingReply reply)
    : request_(std::move(request)), reply_(std::move(reply)) {}

void ClientCall::carry_out(rpc_plugin::Connection& connection, double seconds) {
  rpc_plugin::Exchange exchange;
  exchange.seconds = seconds;
  exchange.next = [this] { return next(); };
  exchange.take = [this](Bytes message) { return take(message); };
  exchange.reach = [this](Phase phase) {
    const std::lock_guard lock(mutex_);
    end_.phase = phase;
  };
  std::string reason;
  const Ending ending =
      connection.exchange(exchange, [&](std::string_view text) { reason = text; });
  const std::lock_guard lock(mutex_);
  ended_ = true;
  end_.ending = ending;
  end_.reason = std::move(reason);
  changed_.notify_all();
}

// The message is copied, as the caller's memory is not there for longer than the caller.
std::optional<Bytes> ClientCall::next() {
  const std::lock_guard lock(mutex_);
  if (left_behind_) return std::nullopt;
  const auto message = request_.next();
  if (!message) return std::nullopt;
  sent_.assign(message->begin(), message->end());
  return sent_;
}

bool ClientCall::take(Bytes message) {
  const std::lock_guard lock(mutex_);
  if (left_behind_) return false;
  try {
    reply_.take(message);
  } catch (...) {
    failed_ = std::current_exception();
  }
  return failed_ == nullptr;
}

CallEnd ClientCall::wait(const Deadline& deadline) {
  constexpr auto kMoment = std::chrono::milliseconds(100);  // for gRPC to end it itself
  constexpr auto kLongest = std::chrono::hours(1);          // of one wait: no overflow of clocks
  const auto over = [&] { return ended_ || cancelled_; };
  std::unique_lock lock(mutex_);
  while (!over() && !deadline.passed()) {
    changed_.wait_for(lock, std::min<Seconds>(deadline.left(), kLongest), over);
  }
  changed_.wait_for(lock, kMoment, [&] { return ended_; });
  if (ended_) return end_;
  left_behind_ = true;
  end_.left_behind = true;
  end_.ending = cancelled_ ? Ending::kCancelled : Ending::kLate;
  return end_;
}

void ClientCall::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

ArrivingReply& ClientCall::reply() {
  const std::lock_guard lock(mutex_);
  if (failed_) std::rethrow_exception(failed_);
  return reply_;
}

}  // namespace troika::detail
