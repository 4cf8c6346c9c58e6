// Lets programs that have an MPI of their own, such as a simulation, join. Their ranks find each
// other over their communicator rather than by variables of a launcher.
#pragma once

#include <troika/base/time.h>
#include <troika/rendezvous/world.h>

namespace troika {

// Returns this process's place on a communicator of the program, and where its members meet. Rank 0
// of the communicator is to keep the store, on a free port of its host; other hosts reach that port
// only where they have members. `fortran_handle` is what
// MPI_Comm_c2f returns, or the integer that Fortran programs have. MPI must be initialised, with
// any level of threads: it is called in this thread, and no longer once this returns. Collective
// over the communicator. Throws UsageError where MPI or a plug-in for it is missing or the handle
// is invalid. Throws RendezvousError when members do not come by the deadline,
// and names them where the communicator has no more than 256.
[[nodiscard]] World world_of_communicator(int fortran_handle, const Deadline& deadline);

}  // namespace troika
