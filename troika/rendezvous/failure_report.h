// A process that cannot take part in its job tells those that wait for it why.
#pragma once

#include <troika/base/failure.h>
#include <troika/base/time.h>
#include <troika/rendezvous/world.h>

namespace troika {

// Tells the other ranks of a job why this one cannot begin: their Rendezvous::join() throws that
// failure, with the rank and the host of this one. Returns at once, but for a rank that keeps the
// store: once they have read it, or at the deadline. Throws RendezvousError, PeerError.
void report_failure(const World& world, const Failure& failure, const Deadline& deadline);

}  // namespace troika
