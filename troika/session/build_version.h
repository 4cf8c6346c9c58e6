// The versions that all ranks of a job must have in common.
#pragma once

#include <string>

namespace troika {

// Returns the versions of this build, for Agreement::version: "0.1.0 with LibTorch 2.11.0".
[[nodiscard]] std::string build_version();

}  // namespace troika
