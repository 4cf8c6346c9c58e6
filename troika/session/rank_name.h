// Names ranks in messages.
#pragma once

#include <troika/rendezvous/rendezvous.h>

#include <span>
#include <string>

namespace troika {

// Returns "rank 1 on host b"; "rank 1" where nothing is known of the ranks' hosts (`members` is
// empty).
[[nodiscard]] inline std::string name_of_rank(int rank, std::span<const Member> members) {
  const std::string name = "rank " + std::to_string(rank);
  return members.empty() ? name : name + " on host " + members[static_cast<std::size_t>(rank)].host;
}

}  // namespace troika
