// Writes a trained model as the program that Python has written, for Python to load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace troika {

// Returns whether a path is that of a program: it ends in ".pt2" or ".pt".
[[nodiscard]] bool is_program_path(const std::filesystem::path& path);

struct ProgramExport {
  std::filesystem::path run;
  std::filesystem::path out;         // "net.pt2" of torch.export, "net.pt" of TorchScript
  std::optional<std::int64_t> step;  // of a checkpoint; absent: as open_run_tensors() takes it
};

// Writes the model of a run as `out`, and of a trace with a file for evaluations that beside it.
// Throws UsageError where the model is no such program, or its file is not there, DataError and
// StorageError.
void export_program(const ProgramExport& options);

}  // namespace troika
