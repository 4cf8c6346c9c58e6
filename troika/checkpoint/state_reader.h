// Reads a checkpoint into the state of a run of any layout.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/replicated_read.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/param/state_dict.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace troika {

class StateReader {
 public:
  // Reads the manifest of a step. Throws DataError naming the file.
  StateReader(const CheckpointFolder& folder, std::int64_t step);
  // Reads that of one checkpoint, wherever its folder lies; the path may be a URL.
  explicit StateReader(const std::filesystem::path& step_folder);

  [[nodiscard]] const std::filesystem::path& path() const { return checkpoint_.place(); }
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] bool has(const std::string& name) const { return manifest_.tensors.contains(name); }
  // Writes this rank's parts of the tensors to those of `state`, and sets its numbers. Throws
  // DataError as the functions below do; the state is undefined then. Reads the files that it
  // needs.
  void read(StateDict& state);

  // These are the parts of it, for ranks that read for others (replicated_read.h). Throws DataError
  // naming a tensor that the checkpoint does not have, or has in another shape.
  void check_wanted(std::span<const StateTensor> all) const;
  // Reads one part. Takes at most kChunkBytes beside it. Requires check_wanted(). Throws DataError
  // naming a file that is damaged.
  void read(const StateTensor& wanted);
  void set_numbers(StateDict& state) const;

  // Compares every `every`-th file, from `first` on, with its SHA-256. What has been copied from a
  // store for this is kept for reading. Throws DataError naming a file that differs.
  void verify(std::size_t first = 0, std::size_t every = 1);
  // Compares one file, likewise.
  void verify_file(std::size_t file);
  // Returns who should read parts that several ranks want.
  [[nodiscard]] PartReaders readers() const;
  // Returns the numbers of the files that hold a part of the tensor, ascending.
  [[nodiscard]] std::vector<std::size_t> files_of(const std::string& tensor) const;

  // The memory for values on their way to a device, or to another type.
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{16} << 20;

 private:
  [[noreturn]] void fail_missing(const std::string& name) const;
  StateReader(CheckpointFiles files, Manifest manifest);

  struct Source {
    std::size_t shard;
    const ManifestPart* part;
  };
  // Writes the values of a part to `values`, of the file's type, in memory of the host.
  void fill(const StateTensor& wanted, const at::Tensor& values, DataType type);
  // Returns the bytes of a part, in the memory of the file.
  [[nodiscard]] std::span<const std::byte> bytes(const Source& source, DataType type);

  [[nodiscard]] const SafetensorsFile& file(std::size_t shard);

  CheckpointFiles checkpoint_;
  Manifest manifest_;
  std::map<std::string, std::vector<Source>> sources_;  // by tensor
  std::map<std::size_t, SafetensorsFile> files_;        // by shard, once opened
  at::Tensor staging_;
};

}  // namespace troika
