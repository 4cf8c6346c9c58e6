// The MPI of this process: which one it is, whether there is a plug-in for it, and loading that.
#pragma once

#include <troika/comm/mpi/plugin.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troika::mpi {

// "openmpi" or "mpich", as in the names of the plug-ins: libtroika_mpi_<flavour>.so.
using Flavour = std::string;

// The plug-ins that can be found.
[[nodiscard]] std::vector<Flavour> available_plugins();

// The MPI that this process belongs to: what TROIKA_MPI says; else the one that the program has
// loaded; else the one whose mpirun has started this process; nothing without any.
[[nodiscard]] std::optional<Flavour> flavour_of_process();

// Why this process cannot use MPI, and what to do; nothing if it can, as far as is known without
// loading it.
struct Obstacle {
  std::string message;
  std::string hint;
};
[[nodiscard]] std::optional<Obstacle> obstacle();

// The plug-in for this process's MPI, loaded. Throws UsageError as obstacle() says.
[[nodiscard]] Plugin& plugin();

}  // namespace troika::mpi
