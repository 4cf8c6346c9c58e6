// Where plug-ins lie: parts of troika that need libraries which not every machine has, or which do
// not go together with LibTorch's symbols.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

// The environment variable that names a folder of plug-ins, searched before all others.
inline constexpr const char* kPluginsVariable = "TROIKA_PLUGINS";

// Returns the file of this name in the first folder that has it, or nothing. Searches the folder
// that TROIKA_PLUGINS names first. Then it looks beside this program or library, where plug-ins are
// installed seen from there (../lib/troika), and in troika/. The folder where this code was built
// comes last.
[[nodiscard]] std::optional<std::filesystem::path> find_plugin(std::string_view file_name);

// The scope of symbols: those that a plug-in sees, and those that see its libraries'.
enum class PluginScope {
  kShared,  // every library: MPI loads parts of its own that need them
  kOwn,     // the plug-in takes its libraries' before any other; no other library sees them
  kLocal    // the plug-in takes the program's before its libraries'; no other library sees those
};
// Returns whether the process has an address or thread sanitizer, in this library or not. A
// sanitizer's symbols have to come first everywhere. PluginScope::kOwn then takes its libraries'
// symbols last.
[[nodiscard]] bool sanitizer_comes_first();
// Loads a plug-in for good, and returns what it exports under `symbol`. Throws UsageError naming
// the file and the reason.
[[nodiscard]] void* load_plugin(const std::filesystem::path& path, const char* symbol,
                                PluginScope scope = PluginScope::kShared);

}  // namespace troika::detail
