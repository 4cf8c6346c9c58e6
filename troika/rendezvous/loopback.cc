#include <ifaddrs.h>
#include <net/if.h>
#include <troika/base/error.h>
#include <troika/rendezvous/loopback.h>

#include <memory>

namespace troika {

bool names_loopback(std::string_view host) {
  return host == "127.0.0.1" || host == "localhost";
}

void check_loopback() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return;  // what fails next says so
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(first, &freeifaddrs);
  bool is_there = false;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if ((each->ifa_flags & IFF_LOOPBACK) == 0) continue;
    if ((each->ifa_flags & IFF_UP) != 0) return;
    is_there = true;
  }
  if (!is_there) return;
  throw RendezvousError(
      "the loopback is down: processes of this host cannot reach each other through 127.0.0.1",
      "`ip link set lo up` brings it up; a network namespace, as of `unshare -n`, has one of its "
      "own, which is down at first");
}

}  // namespace troika
