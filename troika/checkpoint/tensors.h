// Named tensors to and from a safetensors file: the saved model of a run, a dump, an import.
#pragma once

#include <troika/checkpoint/safetensors.h>
#include <troika/param/named_tensor.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika {

// Return the type in files of a type of LibTorch's, or nullopt, and back.
[[nodiscard]] std::optional<DataType> data_type_of(at::ScalarType type);
[[nodiscard]] at::ScalarType scalar_type_of(DataType type);

// Writes the values of `tensors`, of any device, strides and autograd state, one copy at a time.
// fp64, fp32, bf16, fp16, int64, int32, int16, int8, uint8 and bool; anything else, a tensor
// without storage, and a name twice are a UsageError naming the tensor. Throws StorageError naming
// the path, and then leaves what was there before. With a key the file is encrypted.
void save_tensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                  const Metadata& metadata = {}, const std::optional<EncryptionKey>& key = {});

// Returns a fresh contiguous CPU tensor with the values of one entry of `file`, without autograd.
// Throws DataError naming file and tensor: a bool that is neither 0 nor 1.
[[nodiscard]] at::Tensor load_tensor(const SafetensorsFile& file, const TensorEntry& entry);

// Returns all tensors of a file, sorted by name. Throws DataError naming the path and the tensor.
[[nodiscard]] std::vector<NamedTensor> load_tensors(const std::filesystem::path& path);

}  // namespace troika
