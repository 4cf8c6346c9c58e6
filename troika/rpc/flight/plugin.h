// Internal: the two sides of the plug-in, and what both know of Flight.
#pragma once

#include <arrow/flight/types.h>
#include <arrow/status.h>
#include <troika/rpc/rpc_plugin.h>

#include <memory>
#include <string>
#include <string_view>

namespace troika::rpc_plugin {

// The command that opens a stream of ours, in its descriptor.
inline constexpr std::string_view kProtocol = "troika-rpc/1";

// Returns host:port as a location of Flight's.
[[nodiscard]] arrow::Result<arrow::flight::Location> location_of(const std::string& host, int port,
                                                                 const Tls* tls);

[[nodiscard]] std::unique_ptr<Server> make_server(const std::string& host, int port, const Tls* tls,
                                                  Accept accept, const TakeText& error);
[[nodiscard]] std::unique_ptr<Connection> make_connection(const std::string& host, int port,
                                                          const Tls* tls, const TakeText& error);

}  // namespace troika::rpc_plugin
