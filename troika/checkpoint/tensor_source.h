// Whole tensors by name, whatever they lie in: a safetensors file, several with an index, or a
// checkpoint that many ranks have written.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/safetensors_header.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Returns names, types and shapes, sorted by name; their places are of no meaning.
  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return entries_; }
  // Returns the entry of a name, or nullptr.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  // Returns the entry of a name. Throws DataError naming the source and the nearest name.
  [[nodiscard]] const TensorEntry& at(std::string_view name) const;
  // Returns the values of one of entries(), contiguous in the host's memory. Throws DataError
  // naming a file that is damaged.
  [[nodiscard]] virtual at::Tensor load(const TensorEntry& entry) = 0;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 protected:
  TensorSource(std::filesystem::path path, std::vector<TensorEntry> entries);

 private:
  std::filesystem::path path_;
  std::vector<TensorEntry> entries_;
};

// Opens a safetensors file. Throws DataError naming it.
[[nodiscard]] std::unique_ptr<TensorSource> open_tensor_file(const std::filesystem::path& file);
// Opens the tensors of a folder of Hugging Face's libraries: model.safetensors, or several files
// with an index. Throws DataError naming the folder or the file.
[[nodiscard]] std::unique_ptr<TensorSource> open_hub_tensors(const std::filesystem::path& folder);
// Opens the checkpoint of a step. Throws DataError naming the file.
[[nodiscard]] std::unique_ptr<TensorSource> open_checkpoint_tensors(const CheckpointFolder& folder,
                                                                    std::int64_t step);
// Opens the checkpoint in a step's folder. Throws DataError naming it.
[[nodiscard]] std::unique_ptr<TensorSource> open_step_tensors(
    const std::filesystem::path& step_folder);

}  // namespace troika
