// The values of a model in either form that they are saved in: a safetensors file of whole tensors,
// or a checkpoint, whose files hold parts.
#pragma once

#include <troika/checkpoint/manifest.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/state_reader.h>
#include <troika/param/state_dict.h>
#include <troika/session/source_agreement.h>
#include <troika/storage/digest_cache.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troika {

class ValueSource {
 public:
  // The most bytes whose content is compared whole.
  static constexpr std::uint64_t kWholeBytes = 500'000'000;

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
  // Returns what tells these values from others, for tensors named by `used`. A safetensors file:
  // each tensor's type, shape, place and content. Where these tensors have more than `most_whole`
  // bytes, the content is a sample of each, with its first and its last bytes. A checkpoint: its
  // step, and the SHA-256 of each file as the manifest has it: no file is read.
  [[nodiscard]] std::vector<SourcePart> parts(const std::set<std::string>& used,
                                              std::uint64_t most_whole = kWholeBytes) const;
  // Returns whether parts() samples the content of these tensors.
  [[nodiscard]] bool is_sampled(const std::set<std::string>& used,
                                std::uint64_t most_whole = kWholeBytes) const;
  // Returns each tensor's content where parts() does not, and they have kWholeBytes at most.
  [[nodiscard]] std::vector<SourcePart> tensor_parts(const std::set<std::string>& used);
  // Returns the numbers of the files of a checkpoint that hold a part of the tensor. None for a
  // safetensors file.
  [[nodiscard]] std::vector<std::size_t> files_of(const std::string& name) const;
  // Compares a file of a checkpoint with its SHA-256. Throws DataError naming it where it differs.
  // A file of this host that has not changed since it was compared is not read again: `cache`
  // knows.
  void verify(std::size_t file, DigestCache& cache);

 private:
  void read_whole(const TensorEntry& entry, const StateTensor& place) const;

  std::filesystem::path path_;
  std::map<std::string, ManifestTensor> tensors_;
  std::optional<SafetensorsFile> file_;
  std::optional<StateReader> checkpoint_;
};

}  // namespace troika
