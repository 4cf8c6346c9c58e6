// Where plug-ins lie: parts of troika that need libraries which not every machine has.
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
// beside this program or library and in ../lib/troika and troika/ seen from there.
[[nodiscard]] std::optional<std::filesystem::path> find_plugin(std::string_view file_name);

// Loads a plug-in for good, with its symbols for all (MPI loads parts of its own that need them),
// and returns what it exports under `symbol`. Throws UsageError naming the file and the reason.
[[nodiscard]] void* load_plugin(const std::filesystem::path& path, const char* symbol);

}  // namespace troika::detail
