// The values of a model in either form that they are saved in: a safetensors file of whole tensors,
// or a checkpoint, whose files hold parts.
#pragma once

#include <troika/checkpoint/manifest.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/state_reader.h>
#include <troika/param/state_dict.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace troika {

class ValueSource {
 public:
  // Opens a safetensors file, or the folder of one checkpoint, which may be a URL. Throws DataError
  // naming it.
  explicit ValueSource(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Returns the model's tensors. The optimiser's state, and the running statistics that single data
  // ranks have had, are none.
  [[nodiscard]] const std::map<std::string, ManifestTensor>& tensors() const { return tensors_; }
  // Writes this rank's part of the tensor `name` to `place`, whose own name is ignored and whose
  // shape is that of the tensor. Throws DataError naming a damaged file.
  void read(const std::string& name, const StateTensor& place);
  // Compares every `every`-th file of a checkpoint, from `first` on, with its SHA-256. Throws
  // DataError naming one that differs. A file by itself has none.
  void verify(std::size_t first, std::size_t every);

 private:
  void read_whole(const TensorEntry& entry, const StateTensor& place) const;

  std::filesystem::path path_;
  std::map<std::string, ManifestTensor> tensors_;
  std::optional<SafetensorsFile> file_;
  std::optional<StateReader> checkpoint_;
};

}  // namespace troika
