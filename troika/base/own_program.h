// Which program this process runs.
#pragma once

#include <filesystem>

namespace troika {

// The absolute path of the program; works without /proc, too.
[[nodiscard]] std::filesystem::path own_program();

}  // namespace troika
