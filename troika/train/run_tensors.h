// The tensors of what a user names: a run, a checkpoint, a folder of Hugging Face's or a file.
#pragma once

#include <troika/checkpoint/tensor_source.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

namespace troika {

// Opens the model of a run: model.safetensors, or, where a step is given or the run has not ended,
// the checkpoint of that step or the newest. Throws DataError naming what is missing.
[[nodiscard]] std::unique_ptr<TensorSource> open_run_tensors(const std::filesystem::path& run,
                                                             std::optional<std::int64_t> step = {});

// Returns whether a folder of this host is a run, or has checkpoints as a run or a user's own
// program leaves them.
[[nodiscard]] bool is_run_folder(const std::filesystem::path& path);

// Opens a safetensors file, the folder of a checkpoint's step, a run as open_run_tensors() does, or
// a folder of Hugging Face's. Throws DataError naming it.
[[nodiscard]] std::unique_ptr<TensorSource> open_any_tensors(const std::filesystem::path& path,
                                                             std::optional<std::int64_t> step = {});

}  // namespace troika
