// Internal: a call under way at its caller. It is carried out by another thread, which the caller
// leaves behind when that does not end in time: from then on it touches no memory of the caller's.
#pragma once

#include <troika/base/time.h>
#include <troika/rpc/client_messages.h>
#include <troika/rpc/rpc_plugin.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troika::detail {

// The end of a call, and where the call was then.
struct CallEnd {
  rpc_plugin::Ending ending = rpc_plugin::Ending::kLost;
  rpc_plugin::Phase phase = rpc_plugin::Phase::kConnecting;
  std::string reason;
  bool left_behind = false;  // its thread goes on, and its connection is good for nothing
};

// Thread safe.
class ClientCall {
 public:
  ClientCall(OutgoingRequest request, ArrivingReply reply);

  // Carries the call out, on the thread that may be left behind.
  void carry_out(rpc_plugin::Connection& connection, double seconds);

  // Waits until the call has ended, or until it is left behind: a moment after the deadline, or
  // after cancel().
  [[nodiscard]] CallEnd wait(const Deadline& deadline);
  void cancel();

  // Returns the reply of a call that was not left behind. Throws what was wrong with it.
  [[nodiscard]] ArrivingReply& reply();

 private:
  [[nodiscard]] std::optional<rpc_plugin::Bytes> next();
  [[nodiscard]] bool take(rpc_plugin::Bytes message);

  std::mutex mutex_;
  std::condition_variable changed_;
  OutgoingRequest request_;
  ArrivingReply reply_;
  std::vector<std::byte> sent_;  // a message on its way
  std::exception_ptr failed_;    // what was wrong with the reply
  CallEnd end_;
  bool ended_ = false;
  bool cancelled_ = false;
  bool left_behind_ = false;
};

}  // namespace troika::detail
