// The interface through which the processes of one host reach each other.
#pragma once

namespace troika {

// Throws RendezvousError where the loopback interface is down, as in a network namespace that no
// one has set up: connections to 127.0.0.1 fail there, and say that the other side is gone.
void check_loopback();

}  // namespace troika
