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

// Warns where the run is not finished, and its model is not that of its newest checkpoint: it is of
// where the run was last stopped.
void warn_of_older_model(const std::filesystem::path& run);

// Warns where the file of a model, or a checkpoint, is in doubt (checkpoint/doubt.h).
void warn_of_doubt(const std::filesystem::path& place);

// Writes whole parameters to the file `path`, with `metadata`. Throws StorageError; the earlier
// file then stays.
void save_parameters(const std::filesystem::path& path, std::span<const NamedTensor> parameters,
                     const std::optional<EncryptionKey>& key = {}, Metadata metadata = {});
// Writes the masters of an arena that holds a whole model.
void save_parameters(const std::filesystem::path& path, const Arena& arena);
// Fills `tensors` from the file `path`, once all of them have been found there with their shapes.
// Returns the file's metadata. `owner` names what they are of in errors: "the recipe's model".
// Throws DataError as load_parameters() does; nothing has changed then.
Metadata load_values(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                     const std::string& owner);
// Fills the masters of `arena` from the file `path` and publishes them, and fills `buffers`, which
// are those of the same model. Throws DataError naming the file and the tensor that is missing, has
// another shape or, of a parameter, no floating-point type, or a tensor that the model does not
// have; nothing has changed then.
void load_parameters(const std::filesystem::path& path, Arena& arena,
                     std::span<const NamedTensor> buffers = {});

}  // namespace troika
