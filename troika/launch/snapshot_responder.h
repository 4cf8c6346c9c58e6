// Leaves in the job's store what the ranks of this node are doing, when ranks of other nodes ask
// because an operation has failed. A rank that is stopped cannot answer, but its launcher can.
#pragma once

#include <troika/rendezvous/store_watch.h>

#include <filesystem>

namespace troika {

class SnapshotResponder {
 public:
  // Answers the first time it is asked. `job` has the job's prefix, as the ranks see it.
  // `recorders` is where the flight recorders of ranks [first_rank, first_rank + ranks) lie.
  SnapshotResponder(const Store& job, int node, int first_rank, int ranks,
                    std::filesystem::path recorders);

 private:
  Store answers_;  // a connection of its own
  StoreWatch watch_;
};

}  // namespace troika
