// The servers of a job, as another of its processes sees them.
#pragma once

#include <troika/rpc/rpc.h>

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Finds the address of a server, which may have moved since the last time.
using AddressOf = std::function<std::string(int shard, Deadline deadline)>;

// Returns the deadline of a message with so many bytes, which may take a while on a slow link
// beside the time-out of a step: a second more for each 1.25 MB.
[[nodiscard]] Deadline deadline_of_values(Seconds timeout, std::size_t bytes);

// Thread safe. A call whose server is gone is repeated until it is back or the deadline has passed;
// servers do nothing twice.
class ShardClients {
 public:
  ShardClients(int shards, AddressOf address_of, RpcClientOptions options = {});

  [[nodiscard]] int size() const { return static_cast<int>(clients_.size()); }
  // Calls one server, and all of them at once, each with its own message. Throw DeadlineError and
  // PeerError naming the server, and what it throws. `into`: as RpcClient::call().
  RpcReply call(int shard, std::string_view method, const RpcMessage& message, Deadline deadline,
                std::span<std::byte> into = {});
  std::vector<RpcReply> call_all(std::string_view method, std::span<const RpcMessage> messages,
                                 Deadline deadline,
                                 std::span<const std::span<std::byte>> into = {});
  // Calls each server once, and ignores those that are gone.
  void notify_all(std::string_view method, const RpcMessage& message, Deadline deadline);
  // Ends all calls under way, and those to come, with PeerError.
  void cancel();

 private:
  [[nodiscard]] std::shared_ptr<RpcClient> client(int shard, Deadline deadline);
  void forget(int shard, const std::shared_ptr<RpcClient>& client);

  AddressOf address_of_;
  RpcClientOptions options_;
  std::mutex mutex_;
  bool is_cancelled_ = false;
  std::vector<std::shared_ptr<RpcClient>> clients_;
};

}  // namespace troika
