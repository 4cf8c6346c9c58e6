// The c10d store inside a Store, for process groups of c10d. Internal: only for implementation
// files that see LibTorch's distributed headers.
#pragma once

#include <troika/rendezvous/store.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace troika {

// Returns c10d's store on the connection of `store`, behind its prefix. Give each process group its
// own clone(), since a blocking wait holds the connection.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> c10d_store(const Store& store);

}  // namespace troika
