// Where the kernel states the limits of this process's control groups, of either version.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace troika {

// Calls `visit` for the folder of each control group that this process is in, and of all above it,
// as the files below `root` say it (proc/self/cgroup, sys/fs/cgroup). `controller` is empty in
// version 2, and in version 1 one of the names that share the folder. A container may see its own
// group as the root although its path names folders of the host: those may be missing.
void visit_cgroup_folders(const std::filesystem::path& root,
                          const std::function<void(const std::filesystem::path& folder,
                                                   std::string_view controller)>& visit);

}  // namespace troika
