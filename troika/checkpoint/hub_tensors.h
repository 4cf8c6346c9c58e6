// Writes the tensors of a folder of Hugging Face's libraries.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/checkpoint/safetensors_header.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace troika {

// Writes `tensors` to model.safetensors in `folder`; where they have more than `max_bytes`, to
// several files and an index, which is written last. `value` returns the values of a tensor, of its
// type and shape, in the host's memory. One tensor is in memory at a time. Returns the names of the
// files. Throws StorageError, and what `value` throws.
std::vector<std::string> write_hub_tensors(
    const std::filesystem::path& folder, const std::vector<TensorEntry>& tensors,
    std::uint64_t max_bytes, const std::function<at::Tensor(const TensorEntry&)>& value);

}  // namespace troika
