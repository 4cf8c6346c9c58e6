#include <troika/base/file_identity.h>

namespace troika {

std::optional<FileIdentity> FileIdentity::of(const std::filesystem::path& path) {
  struct stat status {};
  if (path.empty() || ::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileIdentity(status);
}

}  // namespace troika
