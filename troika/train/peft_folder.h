// Adapters that leave for the Python package `peft`, and its names for adapters that come in. A
// folder of it has adapter_config.json and adapter_model.safetensors.
#pragma once

#include <troika/models/kind.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troika {

inline constexpr const char* kPeftTensors = "adapter_model.safetensors";
inline constexpr const char* kPeftConfig = "adapter_config.json";

struct PeftExport {
  std::filesystem::path run;
  std::filesystem::path out;         // a new or an empty folder
  std::optional<std::int64_t> step;  // of a checkpoint; absent: as open_run_tensors() takes it
};

// Writes the adapters of a run. Returns the names of the files. Throws UsageError where `out` is
// not empty, or a layer with a pair is part of a larger one there; DataError and StorageError.
std::vector<std::string> export_to_peft(const PeftExport& options);

// Returns how the names of such a file map to those of a model's adapters.
[[nodiscard]] std::vector<RenamedTensors> peft_names(const ModelOptions& model);

}  // namespace troika
