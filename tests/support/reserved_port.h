// A TCP port of this host's loopback that no other program is given while this object lives. It is
// bound and not listened on, so that a server which reuses addresses, as all here do, can take it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <troika/base/file.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace troika::test {

class ReservedPort {
 public:
  ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (!fd_.valid() || setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd_.get(), generic, size) != 0 || getsockname(fd_.get(), generic, &size) != 0) {
      throw std::system_error(errno, std::generic_category(), "reserving a port");
    }
    port_ = ntohs(address.sin_port);
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

}  // namespace troika::test
