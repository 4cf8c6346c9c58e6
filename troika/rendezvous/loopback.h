// The interface through which the processes of one host reach each other.
#pragma once

#include <string_view>

namespace troika {

// Returns whether a rendezvous by this name is for the processes of one host alone.
[[nodiscard]] bool names_loopback(std::string_view host);

// Throws RendezvousError where the loopback interface is down, as in a network namespace that no
// one has set up: connections to 127.0.0.1 fail there, and say that the other side is gone.
void check_loopback();

}  // namespace troika
