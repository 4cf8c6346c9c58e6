#include <troika/base/cgroup_folders.h>

#include <fstream>
#include <sstream>
#include <string>

namespace troika {
namespace {

using Path = std::filesystem::path;

template <typename Visit>
void walk_up(const Path& mount, const std::string& group, const Visit& visit) {
  Path relative = Path(group).relative_path().lexically_normal();
  while (!relative.empty() && relative != ".") {
    if (*relative.begin() == "..") break;  // outside of our namespace
    visit(mount / relative);
    relative = relative.parent_path();
  }
  visit(mount);
}

}  // namespace

void visit_cgroup_folders(const Path& root,
                          const std::function<void(const Path&, std::string_view)>& visit) {
  const Path mounts = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  // Lines as "0::/group" (version 2) and "4:cpu,cpuacct:/group" (version 1).
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      walk_up(mounts, group, [&](const Path& folder) { visit(folder, ""); });
      continue;
    }
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');) {
      // Mounted under the name of one controller, or of all that share the mount.
      std::error_code none;
      const Path mount =
          std::filesystem::exists(mounts / name, none) ? mounts / name : mounts / controllers;
      walk_up(mount, group, [&](const Path& folder) { visit(folder, name); });
    }
  }
}

}  // namespace troika
