#include <troika/base/error.h>
#include <troika/server/shard_clients.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

namespace troika {
namespace {

constexpr Seconds kBetweenTries(0.05);

}  // namespace

Deadline deadline_of_values(Seconds timeout, std::size_t bytes) {
  constexpr double kSlowestLink = 1.25e6;
  return Deadline::in(timeout + Seconds(static_cast<double>(bytes) / kSlowestLink));
}

ShardClients::ShardClients(int shards, AddressOf address_of, RpcClientOptions options)
    : address_of_(std::move(address_of)),
      options_(std::move(options)),
      clients_(static_cast<std::size_t>(shards)) {}

std::shared_ptr<RpcClient> ShardClients::client(int shard, Deadline deadline) {
  const auto index = static_cast<std::size_t>(shard);
  {
    const std::lock_guard lock(mutex_);
    if (clients_[index]) return clients_[index];
  }
  // Without the lock: address_of_() may ask the coordinator, for as long as the deadline allows,
  // and other servers are not to wait for that.
  auto made = std::make_shared<RpcClient>(address_of_(shard, deadline), options_);
  const std::lock_guard lock(mutex_);
  // Another thread may have been faster; one connection is enough.
  if (!clients_[index]) clients_[index] = std::move(made);
  return clients_[index];
}

void ShardClients::forget(int shard, const std::shared_ptr<RpcClient>& client) {
  const std::lock_guard lock(mutex_);
  auto& held = clients_[static_cast<std::size_t>(shard)];
  // Only the connection that has failed: another thread may have made a new one since.
  if (held == client) held.reset();
}

void ShardClients::notify_all(std::string_view method, const RpcMessage& message,
                              Deadline deadline) {
  for (int shard = 0; shard < size(); ++shard) {
    try {
      static_cast<void>(client(shard, deadline)->call(method, message, deadline));
    } catch (const PeerError&) {
      continue;
    }
  }
}

void ShardClients::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  for (const auto& each : clients_) {
    if (each) each->cancel();
  }
}

RpcReply ShardClients::call(int shard, std::string_view method, const RpcMessage& message,
                            Deadline deadline, std::span<std::byte> into) {
  for (;;) {
    std::shared_ptr<RpcClient> used;
    try {
      used = client(shard, deadline);
      return used->call(method, message, deadline, into);
    } catch (const PeerError&) {
      const std::lock_guard lock(mutex_);
      if (is_cancelled_ || deadline.left() <= kBetweenTries) throw;
    }
    // Repeating is safe even where the server had done it: pushes bear turns, sums and updates bear
    // steps, and a server does none twice. The address is asked for anew, for a server that comes
    // back may listen elsewhere.
    if (used) forget(shard, used);
    std::this_thread::sleep_for(kBetweenTries);
  }
}

std::vector<RpcReply> ShardClients::call_all(std::string_view method,
                                             std::span<const RpcMessage> messages,
                                             Deadline deadline,
                                             std::span<const std::span<std::byte>> into) {
  check(messages.size() == clients_.size(), "a message for each server");
  std::vector<RpcReply> replies(messages.size());
  std::vector<std::exception_ptr> errors(messages.size());
  const auto one = [&](std::size_t i) {
    try {
      replies[i] = call(static_cast<int>(i), method, messages[i], deadline,
                        into.empty() ? std::span<std::byte>() : into[i]);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  {
    // In a thread each: together the calls take as long as the slowest server.
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < messages.size(); ++i) others.emplace_back(one, i);
    if (!messages.empty()) one(0);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return replies;
}

}  // namespace troika
