// Which program this process runs.
#pragma once

#include <filesystem>

namespace troika {

// Returns the absolute path of the program. Works without /proc, too.
[[nodiscard]] std::filesystem::path own_program();

}  // namespace troika
