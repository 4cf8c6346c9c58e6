// Keeps c10d from looking up the names of the hosts that connect to a store, or that a store is on.
// It asks for them only to log them, waits for the answer in each connection, and where no name
// server answers that takes seconds each. Internal: implementation files of this folder include it.
#pragma once

namespace troika::detail {

// c10d shows addresses in place of names from now on, in this process. Once, before its first
// connection. Thread-safe.
void show_peers_by_address();

}  // namespace troika::detail
