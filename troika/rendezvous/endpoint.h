// Addresses of the rendezvous: reading "host:port", reaching it within a deadline, and saying
// precisely why that failed.
#pragma once

#include <troika/base/file.h>
#include <troika/base/time.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// The default of torchrun, so that scripts need not name it.
inline constexpr std::uint16_t kDefaultRendezvousPort = 29500;

struct Endpoint {
  std::string host;  // name or address, without brackets
  std::uint16_t port = kDefaultRendezvousPort;

  // Returns "10.0.0.1:29500", "[::1]:29500".
  [[nodiscard]] std::string describe() const;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// Reads "host", "host:port", "address" or "[address]:port". Throws UsageError naming `origin` (a
// flag or a variable).
[[nodiscard]] Endpoint parse_endpoint(std::string_view text, std::string_view origin);

// Reads a port from 1 to 65535. Throws UsageError naming `origin`.
[[nodiscard]] std::uint16_t parse_port(std::string_view text, std::string_view origin);

// Returns the identity of this host: the boot of the kernel and the host's name, which containers
// do not share. Two processes with the same identity share memory.
[[nodiscard]] std::string host_identity();
// Returns whether a name or an address can be turned into an address.
[[nodiscard]] bool host_resolves(const std::string& host);
// Returns whether a name or an address means this host, by its network interfaces.
[[nodiscard]] bool is_this_host(const std::string& host);

// Waits until something accepts a connection there, and returns that connection (a non-blocking
// socket). Throws RendezvousError naming the endpoint, the time waited and the last reason
// (refused, unreachable, unknown name).
[[nodiscard]] UniqueFd connect_to(const Endpoint& endpoint, const Deadline& deadline);

// Returns the address of the interface through which this host reaches the endpoint. Other hosts of
// the job can use it to reach this one. Throws RendezvousError naming the endpoint.
[[nodiscard]] std::string local_address_towards(const Endpoint& endpoint);

// The hosts that may connect to a listening socket.
enum class Reach { kThisHost, kEveryHost };

struct ListeningSocket {
  UniqueFd fd;
  std::uint16_t port;
};

// Binds a TCP port, 0 for any free one. Throws RendezvousError naming the port when it is in use.
[[nodiscard]] ListeningSocket bind_port(std::uint16_t port, Reach reach);

}  // namespace troika
