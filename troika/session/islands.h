// Ranks that act as one, and those that exchange with each other, where replicas are to be loosely
// coupled (docs/loose-coupling.md).
#pragma once

#include <troika/session/session.h>

namespace troika {

// An island is a number of neighbours in the session.
struct Islands {
  Session inside;  // the ranks of this rank's island
  Session across;  // the ranks with the same place in their islands, by island
  int island = 0, islands = 1;
};

// Cuts a session into islands of `ranks` each. Collective. Both sessions have the time-out of the
// one that is cut, and, as sessions on groups, neither store nor device. Throws UsageError where
// the ranks of the session are no whole number of islands, and for a session on a group.
[[nodiscard]] Islands make_islands(const Session& session, int ranks);

}  // namespace troika
