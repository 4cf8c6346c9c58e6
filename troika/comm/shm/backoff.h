// Decides how the ranks of a host wait for each other, by how many cores they share.
#pragma once

#include <troika/comm/shm/shm_group.h>

namespace troika::shm {

// Returns the backoff of a group in a job of `ranks` on this host, where `cores` may be used. With
// a core for each, a waiter spins for longer than a peer that runs takes to come. It spins for
// shorter than a peer takes to be woken. Then it yields, as the peer may be off its core. With
// fewer cores it almost only yields: a peer that yields comes within microseconds, one that sleeps
// has to be woken.
[[nodiscard]] ShmGroup::Backoff backoff_for(int ranks, int cores);

}  // namespace troika::shm
