// Internal: the plug-in that carries requests, and the addresses that it is given.
#pragma once

#include <troika/rpc/rpc_plugin.h>

#include <string>
#include <string_view>

namespace troika::detail {

// Returns the plug-in, loaded with the first call. Throws UsageError where this build has none.
[[nodiscard]] const rpc_plugin::RpcPlugin& rpc_library();

struct RpcAddress {
  std::string host;  // without brackets
  int port = 0;
};

// Reads "host:port" or "[address]:port" with a port from `least` to 65535. Throws UsageError.
[[nodiscard]] RpcAddress parse_rpc_address(std::string_view text, int least);

}  // namespace troika::detail
