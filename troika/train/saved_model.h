// The model of a finished run: <run>/model.safetensors, masters under their global names.
#pragma once

#include <troika/checkpoint/tensors.h>
#include <troika/param/arena.h>

#include <filesystem>
#include <span>

namespace troika {

[[nodiscard]] std::filesystem::path model_path(const std::filesystem::path& run);
// Returns the path of the best model by [train] best_metric: <run>/best.safetensors.
[[nodiscard]] std::filesystem::path best_model_path(const std::filesystem::path& run);

// Writes whole parameters to the file `path`. Throws StorageError; the earlier file then stays.
void save_parameters(const std::filesystem::path& path, std::span<const NamedTensor> parameters);
// Writes the masters of an arena that holds a whole model.
void save_parameters(const std::filesystem::path& path, const Arena& arena);
// Fills the masters of `arena` from the file `path` and publishes them. Throws DataError naming the
// file and the parameter that is missing, is of no floating-point type or has another shape, or a
// tensor that is no parameter.
void load_parameters(const std::filesystem::path& path, Arena& arena);

// Fills the masters of `arena` likewise from the file of a run.
void load_model(const std::filesystem::path& run, Arena& arena);

}  // namespace troika
