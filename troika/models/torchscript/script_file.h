// Reads a TorchScript file. Internal to this folder.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <filesystem>

namespace troika {

// Loads the file on the CPU. Each tensor has memory of its own for each element: a buffer, or a
// frozen parameter, that expand() has made is copied. Throws UsageError naming the file: it is not
// there, is cut short, is of another format, or needs what is not here. Throws UsageError naming a
// tensor that is complex, or a parameter whose elements share memory.
[[nodiscard]] torch::jit::Module load_script(const std::filesystem::path& path);

}  // namespace troika
