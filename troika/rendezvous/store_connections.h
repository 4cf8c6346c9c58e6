// Reserves the connections that the process that keeps the store of a job has to hold.
#pragma once

#include <troika/base/open_file_limit.h>

#include <string>
#include <string_view>

namespace troika {

// Makes sure that this process can keep the store for `ranks` ranks and open `others` files
// besides. `who` stands in front of "8 ranks". Throws as reserve_open_files().
inline void reserve_store_connections(int ranks, int others, std::string_view who) {
  // A rank has four connections, one of them for its checkpoints, and one or two more for each of
  // its groups. The guardian of the ranks has a socket.
  constexpr std::uint64_t kOfStore = 13;
  constexpr int kFewest = 11, kMost = 23;
  const auto count = [&](int of_each) {
    return kOfStore + static_cast<std::uint64_t>(others) +
           static_cast<std::uint64_t>(of_each) * static_cast<std::uint64_t>(ranks);
  };
  reserve_open_files(count(kFewest), count(kMost),
                     std::string(who) + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"));
}

}  // namespace troika
