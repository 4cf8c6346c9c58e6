// How the ranks of a host wait for each other, by how many cores they have to share.
#pragma once

#include <troika/comm/shm/shm_group.h>

namespace troika::shm {

// For a group in a job of `ranks` on this host, of which `cores` may be used. With a core for each:
// spins for longer than a peer that runs takes to come and shorter than one takes to be
// woken; then, as the peer may be off its core, yields. With fewer cores almost only
// the latter: a peer that yields comes within microseconds, one that sleeps has to
// be woken.
[[nodiscard]] ShmGroup::Backoff backoff_for(int ranks, int cores);

}  // namespace troika::shm
