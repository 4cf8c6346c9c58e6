// The members of a group as messages name them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace troika {

struct Members {
  std::string axis;
  std::vector<int> ranks;                    // world ranks, by position
  std::vector<std::string> hosts;            // names, by position
  std::vector<std::string> identities = {};  // of the hosts, as host_identity() tells them apart
  std::vector<int> pids = {};                // as each process knows itself
  int index = 0;                             // this process
  std::uint64_t generation = 0;
  // The folder of the flight recorders of this host's ranks; empty if there are none.
  std::filesystem::path recorders = {};

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  // Returns "rank 3 (host b, pid 4711)".
  [[nodiscard]] std::string name(int member) const;
  // Returns whether a member's process can be looked at from here.
  [[nodiscard]] bool on_this_host(int member) const;
};

}  // namespace troika
