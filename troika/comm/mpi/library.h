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

// Returns the plug-ins that can be found.
[[nodiscard]] std::vector<Flavour> available_plugins();

// Returns the MPI that this process belongs to: the one that TROIKA_MPI names; else the one that
// the program has loaded; else the one whose mpirun has started this process; nothing without any.
[[nodiscard]] std::optional<Flavour> flavour_of_process();

// The reason why this process cannot use MPI, and what to do. obstacle() returns nothing if it can,
// as far as is known without loading MPI.
struct Obstacle {
  std::string message;
  std::string hint;
};
[[nodiscard]] std::optional<Obstacle> obstacle();

// Returns the plug-in for this process's MPI, loaded. Throws UsageError as obstacle() says.
[[nodiscard]] MpiPlugin& plugin();

}  // namespace troika::mpi
