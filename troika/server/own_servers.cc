#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/server/own_servers.h>
#include <troika/session/consensus.h>

#include <algorithm>
#include <utility>

namespace troika {

namespace {

bool is_one_host(const Session& session) {
  const auto& members = session.members();
  return std::ranges::all_of(members, [&](const Member& each) {
    return each.host_identity == members.front().host_identity;
  });
}

std::string address_of(const Session& session, const RpcServer& server) {
  const std::string host =
      is_one_host(session) ? "127.0.0.1"
                           : session.members()[static_cast<std::size_t>(session.rank())].address;
  return Endpoint{host, static_cast<std::uint16_t>(server.port())}.describe();
}

}  // namespace

OwnServers::OwnServers(const Session& session, const OwnServersOptions& options)
    : shard_(session.rank()) {
  run_ = session.gather(session.rank() == 0 ? new_run_name() : "", "run of servers")[0];
  RpcServerOptions listening{is_one_host(session) ? "127.0.0.1:0" : "0.0.0.0:0"};
  listening.tls = options.tls;
  RpcClientOptions connections;
  connections.tls = options.tls;
  std::string own_server, own_coordinator;
  run_on_all_ranks(
      session,
      [&] {
        if (shard_ < options.servers) {
          ShardServiceOptions shard;
          shard.shard = shard_;
          shard.shards = options.servers;
          shard.optimizer = options.optimizer;
          shard.codec = options.codec;
          service_.emplace(std::move(shard));
          server_.emplace(listening,
                          [this](const RpcRequest& request) { return service_->answer(request); });
          own_server = address_of(session, *server_);
        }
        if (shard_ == 0) {
          clients_.emplace(
              options.servers, [this](int shard, Deadline) { return server_address(shard); },
              connections);
          CoordinatorServiceOptions own = options.coordinator;
          own.run = run_;
          coordinator_.emplace(std::move(own), *clients_);
          RpcServerOptions small = listening;  // it takes no values
          small.most_body_bytes = kMostHeaderBytes;
          coordinator_server_.emplace(
              small, [this](const RpcRequest& request) { return coordinator_->answer(request); });
          own_coordinator = address_of(session, *coordinator_server_);
        }
      },
      "servers");
  server_addresses_ = session.gather(own_server, "addresses of servers");
  coordinator_address_ = session.gather(own_coordinator, "address of the coordinator")[0];
}

OwnServers::~OwnServers() {
  // Before the members end: a thread of the coordinator that waits for a server would keep its RPC
  // server from closing.
  if (clients_) clients_->cancel();
}

void OwnServers::init(std::span<const ShardSegment> segments, const at::Tensor& values,
                      int servers) {
  const IndexRange range = shard_range(values.numel(), shard_, servers);
  std::vector<ShardSegment> own;
  std::int64_t begin = 0;
  for (ShardSegment segment : segments) {
    const std::int64_t first = std::max(begin, range.first);
    const std::int64_t last = std::min(begin + segment.count, range.end());
    begin += segment.count;
    segment.count = last - first;
    if (segment.count > 0) own.push_back(std::move(segment));
  }
  service_->begin(run_, std::move(own), values.narrow(0, range.first, range.count), {});
}

void OwnServers::set_last_step(std::int64_t last_step) {
  if (coordinator_) coordinator_->set_last_step(last_step);
}

}  // namespace troika
