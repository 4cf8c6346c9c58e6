// A session of a test's own, with a rendezvous of its own rather than on the test's group.
#pragma once

#include <troika/session/session.h>

#include <string>

#include "ranks/rank_helper.h"

namespace troika::test {

inline World world_of(Rank& rank, const std::string& job = "session") {
  World world;
  world.rank = rank.index();
  world.size = rank.size();
  world.host = "here";
  world.store = rank.store().endpoint();
  world.store_host = StoreHost::kLauncher;
  world.job = job;
  return world;
}

}  // namespace troika::test
