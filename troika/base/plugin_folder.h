// Where plug-ins lie: parts of troika that need libraries which not every machine has, or which do
// not go together with LibTorch's symbols.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

// Names a folder of plug-ins, before all others.
inline constexpr const char* kPluginsVariable = "TROIKA_PLUGINS";

// The file of this name in the first folder that has it: the one that TROIKA_PLUGINS names, then
// beside this program or library, where they are installed seen from there (../lib/troika) and in
// troika/, then where this code was built.
[[nodiscard]] std::optional<std::filesystem::path> find_plugin(std::string_view file_name);

// Whose symbols a plug-in sees, and who sees those of its libraries.
enum class PluginScope {
  kShared,  // everybody: MPI loads parts of its own that need them
  kOwn      // the plug-in takes its libraries' before any other, and nobody else sees them
};
// Whether the process, this library or not, has an address or thread sanitizer, whose symbols have
// to come first everywhere: PluginScope::kOwn then takes its libraries' last.
[[nodiscard]] bool sanitizer_comes_first();
// Loads a plug-in for good, and returns what it exports under `symbol`. Throws UsageError naming
// the file and the reason.
[[nodiscard]] void* load_plugin(const std::filesystem::path& path, const char* symbol,
                                PluginScope scope = PluginScope::kShared);

}  // namespace troika::detail
