// Messages over Gloo's TCP connections, as c10d sets them up.
#pragma once

#include <troika/comm/p2p/transport.h>
#include <troika/rendezvous/store.h>

#include <memory>
#include <string>

namespace troika {

// The place where this process listens for its peers: an address of this host, or a network
// interface.
struct GlooDevice {
  enum class By { kAddress, kInterface };
  By by;
  std::string name;
};

// Connects all members with each other. Collective. `store` is this group's own, with its own keys
// and its own connection. Throws RendezvousError.
[[nodiscard]] std::unique_ptr<Transport> connect_gloo(const Store& store, const GlooDevice& device,
                                                      int rank, int size, const Deadline& deadline);

}  // namespace troika
