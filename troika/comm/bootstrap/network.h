// The network interfaces of this host.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace troika {

struct NetworkInterface {
  std::string name;                    // "eth0"
  std::vector<std::string> addresses;  // numeric; IPv6 ones of the link alone are left out
  bool up = false;
  bool loopback = false;
};

// Returns the interfaces in the order of the system, each name once.
[[nodiscard]] std::vector<NetworkInterface> network_interfaces();

// Returns the interface that TROIKA_INTERFACE, else GLOO_SOCKET_IFNAME, asks for, if either does.
// Throws UsageError, naming the variable and the usable interfaces, if there is no such interface
// or it has no address.
[[nodiscard]] std::optional<std::string> requested_interface();

}  // namespace troika
