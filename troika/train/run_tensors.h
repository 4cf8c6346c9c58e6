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

// Opens a safetensors file, the folder of a checkpoint's step, a run as open_run_tensors() does, or
// a folder of Hugging Face's. Throws DataError naming it.
[[nodiscard]] std::unique_ptr<TensorSource> open_any_tensors(const std::filesystem::path& path,
                                                             std::optional<std::int64_t> step = {});

}  // namespace troika
