// Reads a TorchScript file. Internal to this folder.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <filesystem>

namespace troika {

// Loads the file on the CPU. Throws UsageError naming the file: it is not there, is cut short, is
// of another format, or needs what is not here.
[[nodiscard]] torch::jit::Module load_script(const std::filesystem::path& path);

}  // namespace troika
