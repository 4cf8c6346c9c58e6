// The folder that a command fills.
#pragma once

#include <filesystem>

namespace troika {

// Makes a folder. Throws UsageError where something lies in it already, and StorageError.
void make_empty_folder(const std::filesystem::path& folder);

}  // namespace troika
