// Where a rank stands among those of its host, as its launcher says: what the choice of a device
// asks for.
#pragma once

#include <troika/device/choose.h>
#include <troika/rendezvous/environment.h>
#include <troika/rendezvous/world.h>

namespace troika {

// Variables of the ranks of a launcher that is one of several on a host: the place of its first one
// among all of them, and how many there are.
inline constexpr const char* kFirstOnHost = "TROIKA_FIRST_ON_HOST";
inline constexpr const char* kRanksOnHost = "TROIKA_RANKS_ON_HOST";

// Returns the place of this process. Before the rendezvous, under launchers that do not say who
// shares a host, it is that of a rank alone.
[[nodiscard]] HostPosition host_position(const World& world, const Environment& environment);

}  // namespace troika
