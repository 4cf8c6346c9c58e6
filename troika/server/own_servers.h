// Internal. The servers of a program of the user's own: the first ranks host one each, and rank 0
// the coordinator, on threads beside their training.
#pragma once

#include <troika/server/coordinator_service.h>
#include <troika/server/shard_clients.h>
#include <troika/server/shard_service.h>
#include <troika/session/session.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct OwnServersOptions {
  int servers = 1;
  OptimizerOptions optimizer = {};
  std::shared_ptr<const Codec> codec = {};  // of what is pushed
  std::optional<TlsFiles> tls = {};
  CoordinatorServiceOptions coordinator = {};
};

class OwnServers {
 public:
  // Collective.
  OwnServers(const Session& session, const OwnServersOptions& options);
  ~OwnServers();
  OwnServers(const OwnServers&) = delete;
  OwnServers& operator=(const OwnServers&) = delete;

  [[nodiscard]] const std::string& run() const { return run_; }
  [[nodiscard]] const std::string& coordinator_address() const { return coordinator_address_; }
  [[nodiscard]] const std::string& server_address(int shard) const {
    return server_addresses_[static_cast<std::size_t>(shard)];
  }
  // Returns whether this rank hosts a server, and that server.
  [[nodiscard]] bool has_server() const { return service_.has_value(); }
  [[nodiscard]] ShardService& server() { return *service_; }
  // Gives this rank's server its part of the parameters, which lie end to end in `values`.
  void init(std::span<const ShardSegment> segments, const at::Tensor& values, int servers);
  // Lets the workers go on up to another step, once all have left.
  void set_last_step(std::int64_t last_step);

 private:
  int shard_;
  std::string run_, coordinator_address_;
  std::vector<std::string> server_addresses_;
  // Answer other ranks' calls on threads of their own, and end before what they use.
  std::optional<ShardService> service_;
  std::optional<ShardClients> clients_;
  std::optional<CoordinatorService> coordinator_;
  std::optional<RpcServer> server_, coordinator_server_;
};

}  // namespace troika
