#include <torch/headeronly/version.h>
#include <troika/base/version.h>
#include <troika/session/build_version.h>

namespace troika {

std::string build_version() {
  return std::string(kVersion) + " with LibTorch " + TORCH_VERSION;
}

}  // namespace troika
