#include <troika/base/error.h>
#include <troika/base/plugin_folder.h>
#include <troika/base/text.h>
#include <troika/comm/mpi/library.h>
#include <troika/rendezvous/environment.h>

#include <dlfcn.h>

#include <array>
#include <string_view>

namespace troika::mpi {
namespace {

constexpr const char* kFlavours[] = {"openmpi", "mpich"};
constexpr const char* kVariable = "TROIKA_MPI";

std::string file_of(const Flavour& flavour) {
  return "libtroika_mpi_" + flavour + ".so";
}

// Asks the MPI that is part of the program, if there is one; allowed before MPI_Init.
std::optional<Flavour> flavour_in_program() {
  using GetVersion = int (*)(char*, int*);
  const auto get_version =
      reinterpret_cast<GetVersion>(dlsym(RTLD_DEFAULT, "MPI_Get_library_version"));
  if (get_version == nullptr) return std::nullopt;
  std::array<char, 8192> text{};  // MPI_MAX_LIBRARY_VERSION_STRING: 256 of Open MPI, 8192 of MPICH
  int length = 0;
  if (get_version(text.data(), &length) != 0) return std::nullopt;
  // Intel's and Cray's are MPICH, and have its binary interface.
  return std::string_view(text.data()).find("Open MPI") != std::string_view::npos ? "openmpi"
                                                                                  : "mpich";
}

std::optional<Flavour> flavour_of_launcher(const Environment& environment) {
  if (environment.has("OMPI_COMM_WORLD_SIZE")) return "openmpi";
  if (environment.has("PMI_RANK") || environment.has("PMI_SIZE")) return "mpich";
  return std::nullopt;
}

}  // namespace

std::vector<Flavour> available_plugins() {
  std::vector<Flavour> found;
  for (const char* flavour : kFlavours) {
    if (troika::detail::find_plugin(file_of(flavour))) found.emplace_back(flavour);
  }
  return found;
}

std::optional<Flavour> flavour_of_process() {
  const Environment environment = Environment::of_process();
  if (auto chosen = environment.text(kVariable)) return chosen;
  if (const auto loaded = flavour_in_program()) return loaded;
  return flavour_of_launcher(environment);
}

std::optional<Obstacle> obstacle() {
  const std::vector<Flavour> plugins = available_plugins();
  if (plugins.empty()) {
    return Obstacle{
        "there is no plug-in for MPI (libtroika_mpi_openmpi.so, libtroika_mpi_mpich.so)",
        "install Open MPI or MPICH with its headers, and build troika again; or set "
        "TROIKA_PLUGINS to the folder of the plug-ins"};
  }
  const auto flavour = flavour_of_process();
  if (!flavour) {
    return Obstacle{"this process was not started by mpirun",
                    "start it with mpirun -n N; there are plug-ins for " + join(plugins, " and ")};
  }
  if (!troika::detail::find_plugin(file_of(*flavour))) {
    return Obstacle{"this process belongs to the MPI " + quote(*flavour) +
                        ", and there are plug-ins for " + join(plugins, " and ") + " only",
                    "use the mpirun of one of these, or set TROIKA_MPI to choose another"};
  }
  return std::nullopt;
}

MpiPlugin& plugin() {
  if (const auto why_not = obstacle()) {
    throw UsageError("MPI cannot be used: " + why_not->message, why_not->hint);
  }
  const auto path = *troika::detail::find_plugin(file_of(*flavour_of_process()));
  const auto entry = reinterpret_cast<PluginEntry>(troika::detail::load_plugin(path, kPluginEntry));
  MpiPlugin* plugin = entry(kPluginVersion);
  if (plugin == nullptr) {
    throw UsageError(path.string() + " belongs to another version of troika",
                     "build and install both together");
  }
  return *plugin;
}

}  // namespace troika::mpi
