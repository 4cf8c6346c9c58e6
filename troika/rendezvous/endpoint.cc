#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/milliseconds.h>
#include <troika/base/open_file_limit.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/endpoint.h>
#include <troika/rendezvous/wait_notice.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

namespace troika {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The addresses of a host, or nullptr and a reason.
Addresses resolve(const std::string& host, std::uint16_t port, int type, std::string* reason) {
  addrinfo wanted{};
  wanted.ai_socktype = type;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (error != 0) {
    if (reason) *reason = "the name is unknown: " + std::string(gai_strerror(error));
    found = nullptr;
  }
  return Addresses(found, &freeaddrinfo);
}

// Connects within `limit`; 0 or the error number.
int try_connect(const addrinfo& address, Seconds limit, UniqueFd& fd) {
  fd = UniqueFd(socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd writable{fd.get(), POLLOUT, 0};
  if (poll(&writable, 1, poll_milliseconds(limit)) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

bool same_address(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET) {
    const auto& left = reinterpret_cast<const sockaddr_in&>(a);
    const auto& right = reinterpret_cast<const sockaddr_in&>(b);
    return left.sin_addr.s_addr == right.sin_addr.s_addr;
  }
  if (a.sa_family != AF_INET6) return false;
  const auto& left = reinterpret_cast<const sockaddr_in6&>(a);
  const auto& right = reinterpret_cast<const sockaddr_in6&>(b);
  return std::memcmp(&left.sin6_addr, &right.sin6_addr, sizeof(in6_addr)) == 0;
}

// All of 127.0.0.0/8 is this host, though only 127.0.0.1 is listed on an interface.
bool is_loopback(const sockaddr& address) {
  return address.sa_family == AF_INET &&
         ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
}

[[noreturn]] void throw_port_error(std::uint16_t port, int error) {
  check_open_files(error, "this process");
  const std::string name = "port " + std::to_string(port);
  if (error == EADDRINUSE) {
    throw RendezvousError(name + " is in use on " + host_name() + ", so no rendezvous can be there",
                          "name a free one with --rendezvous HOST:PORT or MASTER_PORT, or end what "
                          "holds it (`ss -ltnp` lists who does)");
  }
  throw RendezvousError(
      "cannot listen on " + name + ": " + std::strerror(error),
      error == EACCES ? "ports below 1024 need privileges: take a higher one" : "");
}

// A bound and listening socket, or an error number.
int listen_on(int family, const sockaddr* address, socklen_t size, UniqueFd& fd) {
  fd = UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  const int on = 1, off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(fd.get(), address, size) != 0) return errno;
  return listen(fd.get(), SOMAXCONN) == 0 ? 0 : errno;
}

int listen_on_v4(std::uint16_t port, Reach reach, UniqueFd& fd) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(reach == Reach::kThisHost ? INADDR_LOOPBACK : INADDR_ANY);
  return listen_on(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof(address), fd);
}

int listen_on_v6(std::uint16_t port, UniqueFd& fd) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  address.sin6_addr = in6addr_any;
  return listen_on(AF_INET6, reinterpret_cast<const sockaddr*>(&address), sizeof(address), fd);
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw_port_error(0, errno);
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

std::string Endpoint::describe() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::uint16_t parse_port(std::string_view text, std::string_view origin) {
  int port = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || rest != end || port < 1 || port > 65535) {
    throw UsageError(std::string(origin) + ": " + quote(text) + " is not a port (1 to 65535)");
  }
  return static_cast<std::uint16_t>(port);
}

Endpoint parse_endpoint(std::string_view text, std::string_view origin) {
  const auto fail = [&]() -> Endpoint {
    throw UsageError(std::string(origin) + ": " + quote(text) + " is not HOST:PORT",
                     "write it as 10.0.0.1:29500, node1:29500 or [fd00::1]:29500");
  };
  Endpoint endpoint;
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return fail();
    endpoint.host = text.substr(1, close - 1);
    port = text.substr(close + 1);
  } else if (std::count(text.begin(), text.end(), ':') > 1) {
    endpoint.host = text;  // a bare IPv6 address
  } else {
    const std::size_t colon = std::min(text.find(':'), text.size());
    endpoint.host = text.substr(0, colon);
    port = text.substr(colon);
  }
  if (endpoint.host.empty() || (!port.empty() && !port.starts_with(':'))) return fail();
  if (!port.empty()) endpoint.port = parse_port(port.substr(1), origin);
  return endpoint;
}

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot + "/" + host_name();
}

bool host_resolves(const std::string& host) {
  return resolve(host, 0, SOCK_STREAM, nullptr) != nullptr;
}

bool is_this_host(const std::string& host) {
  const Addresses addresses = resolve(host, 0, SOCK_STREAM, nullptr);
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(first, &freeifaddrs);
  for (const addrinfo* a = addresses.get(); a; a = a->ai_next) {
    if (is_loopback(*a->ai_addr)) return true;
    for (const ifaddrs* own = first; own; own = own->ifa_next) {
      if (own->ifa_addr && same_address(*a->ai_addr, *own->ifa_addr)) return true;
    }
  }
  return false;
}

UniqueFd connect_to(const Endpoint& endpoint, const Deadline& deadline) {
  // Nobody announces that a port on another host has opened, so this asks, ever less often.
  Seconds pause = failure_timing::kFirstConnectPause;
  std::string reason;
  WaitNotice notice(deadline);
  for (;;) {
    const Addresses addresses = resolve(endpoint.host, endpoint.port, SOCK_STREAM, &reason);
    for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
      UniqueFd fd;
      const int error =
          try_connect(*address, std::min(deadline.left(), failure_timing::kConnectAddress), fd);
      if (error == 0) return fd;
      check_open_files(error, "this process");
      reason = std::strerror(error);
    }
    if (deadline.passed()) break;
    notice.log_if_due([&] { return "the rendezvous at " + endpoint.describe() + ": " + reason; });
    poll(nullptr, 0, poll_milliseconds(std::min(pause, deadline.left())));
    pause = std::min(pause * 1.5, failure_timing::kLongestConnectPause);
  }
  throw RendezvousError(
      "no rendezvous at " + endpoint.describe() + " after " +
          format_fixed(deadline.timeout().count(), 1) + " s (" + reason + ")",
      "is rank 0 or the launcher of node 0 running there, and may this host reach that port?");
}

std::string local_address_towards(const Endpoint& endpoint) {
  std::string reason;
  const Addresses addresses = resolve(endpoint.host, endpoint.port, SOCK_DGRAM, &reason);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    const UniqueFd fd(socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    std::array<char, NI_MAXHOST> text{};
    // Connecting a datagram socket sends nothing; it only picks the interface.
    if (fd.valid() && connect(fd.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return text.data();
    }
    reason = std::strerror(errno);
  }
  throw RendezvousError("no network interface leads to " + endpoint.describe() + ": " + reason);
}

ListeningSocket bind_port(std::uint16_t port, Reach reach) {
  UniqueFd fd;
  int error = EAFNOSUPPORT;
  if (reach == Reach::kEveryHost) error = listen_on_v6(port, fd);
  if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) error = listen_on_v4(port, reach, fd);
  if (error != 0) throw_port_error(port, error);
  const std::uint16_t bound = bound_port(fd.get());
  return {std::move(fd), bound};
}

}  // namespace troika
