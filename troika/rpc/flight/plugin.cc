#include <troika/rpc/flight/plugin.h>

#include <cstdlib>
#include <utility>

namespace troika::rpc_plugin {
namespace {

// gRPC writes to stderr what it thinks of peers. The reasons that matter reach our callers as
// errors, so it is told to be quiet. Reads its variable with the first channel or server, and never
// again.
void silence_grpc() {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
}

class Flight final : public RpcPlugin {
 public:
  Flight() { silence_grpc(); }
  [[nodiscard]] std::unique_ptr<Server> serve(const std::string& host, int port, const Tls* tls,
                                              Accept accept, const TakeText& error) const override {
    return make_server(host, port, tls, std::move(accept), error);
  }
  [[nodiscard]] std::unique_ptr<Connection> connect(const std::string& host, int port,
                                                    const Tls* tls,
                                                    const TakeText& error) const override {
    return make_connection(host, port, tls, error);
  }
};

}  // namespace

arrow::Result<arrow::flight::Location> location_of(const std::string& host, int port,
                                                   const Tls* tls) {
  using arrow::flight::Location;
  const std::string bracketed = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return tls != nullptr ? Location::ForGrpcTls(bracketed, port)
                        : Location::ForGrpcTcp(bracketed, port);
}

extern "C" __attribute__((visibility("default"))) const RpcPlugin* troika_rpc_plugin() {
  static const Flight* const plugin = new Flight();  // outlives what ends at exit
  return plugin;
}

}  // namespace troika::rpc_plugin
