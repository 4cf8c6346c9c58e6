#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/comm/bootstrap/network.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

namespace troika {
namespace {

std::optional<std::string> address_text(const sockaddr* address) {
  if (address == nullptr) return std::nullopt;
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* binary = nullptr;
  if (address->sa_family == AF_INET) {
    binary = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&v6)) return std::nullopt;
    binary = &v6;
  }
  if (binary == nullptr ||
      inet_ntop(address->sa_family, binary, text.data(), text.size()) == nullptr) {
    return std::nullopt;
  }
  return text.data();
}

NetworkInterface& entry(std::vector<NetworkInterface>& interfaces, const ifaddrs& from) {
  const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                  [&](const auto& each) { return each.name == from.ifa_name; });
  if (found != interfaces.end()) return *found;
  interfaces.push_back({.name = from.ifa_name,
                        .addresses = {},
                        .up = (from.ifa_flags & IFF_UP) != 0,
                        .loopback = (from.ifa_flags & IFF_LOOPBACK) != 0});
  return interfaces.back();
}

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<NetworkInterface> interfaces;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    NetworkInterface& interface = entry(interfaces, *each);
    if (auto text = address_text(each->ifa_addr)) interface.addresses.push_back(*text);
  }
  return interfaces;
}

std::optional<std::string> requested_interface() {
  for (const char* variable : {"TROIKA_INTERFACE", "GLOO_SOCKET_IFNAME"}) {
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') continue;
    std::vector<std::string> usable;
    for (const NetworkInterface& each : network_interfaces()) {
      if (each.up && !each.addresses.empty()) usable.push_back(each.name);
    }
    if (std::find(usable.begin(), usable.end(), value) != usable.end()) return value;
    throw UsageError(std::string(variable) + "=" + value +
                         ": this host has no such network interface with an address",
                     "it has " + join(usable, ", "));
  }
  return std::nullopt;
}

}  // namespace troika
