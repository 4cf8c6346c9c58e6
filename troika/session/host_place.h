// Where a rank stands among those of its host, as its launcher says: what the choice of a device
// asks for.
#pragma once

#include <troika/device/choose.h>
#include <troika/rendezvous/environment.h>
#include <troika/rendezvous/world.h>

namespace troika {

// Returns the place of this process. Before the rendezvous, under launchers that do not say who
// shares a host, it is that of a rank alone.
[[nodiscard]] HostPlace place_of(const World& world, const Environment& environment);

}  // namespace troika
