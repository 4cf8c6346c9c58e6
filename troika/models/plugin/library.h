// Loads the library of a plug-in for models (troika/model_plugin.h).
#pragma once

#include <troika/models/kind.h>

#include <filesystem>

namespace troika {

// Loads the library for good, and returns its kind. Throws UsageError, before any of its code runs,
// naming a file that is not there, that is no plug-in, or that was built for another troika,
// LibTorch or C++ library; else for one that the system's loader refuses, with its reason.
[[nodiscard]] const ModelKind& load_model_plugin(const std::filesystem::path& file);

}  // namespace troika
