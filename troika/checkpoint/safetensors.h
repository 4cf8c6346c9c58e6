// Reads and writes safetensors files as bytes: a mapped file whose header is checked before
// anything is used, and a writer that never leaves half a file. tensors.h puts at::Tensor on top.
#pragma once

#include <troika/base/file.h>
#include <troika/checkpoint/safetensors_header.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// An open file. Its spans are valid as long as it lives (MappedFile says what happens when the file
// is shortened meanwhile). Const access is thread safe.
class SafetensorsFile {
 public:
  // Opens the file. Throws DataError naming the path and, where one is at fault, the tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  // Returns the entries in the order of their data.
  [[nodiscard]] std::span<const TensorEntry> entries() const { return header_.entries; }
  [[nodiscard]] const Metadata& metadata() const { return header_.metadata; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

  // Returns the entry of a name, or nullptr.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  // Returns the entry of a name. Throws DataError naming the file, the name and the nearest
  // existing one.
  [[nodiscard]] const TensorEntry& at(std::string_view name) const;

  // Returns the bytes of one of entries(): little-endian, row-major, not necessarily aligned.
  [[nodiscard]] std::span<const std::byte> data(const TensorEntry& entry) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

// Writes a file tensor by tensor, so that only one has to be in memory. The file appears in
// commit(), or not at all. Not thread safe.
class SafetensorsWriter {
 public:
  // Begins the file. The begin and end of `tensors` are ignored; entries() gives the order of
  // writes. Throws StorageError naming the path, UsageError naming a tensor (see
  // lay_out_safetensors).
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> tensors,
                    const Metadata& metadata = {});

  [[nodiscard]] std::span<const TensorEntry> entries() const { return entries_; }
  // Writes all bytes of the next of entries(). Throws StorageError; InternalError when the size is
  // not the entry's.
  void write(std::span<const std::byte> bytes);
  // Completes the file. Throws StorageError; InternalError when tensors are missing.
  void commit();

 private:
  std::vector<TensorEntry> entries_;
  std::size_t next_ = 0;
  AtomicFile file_;
};

// A tensor for write_safetensors(), which writes the whole file in one call, with the errors above.
struct TensorBytes {
  std::string name;
  DataType type = DataType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};
void write_safetensors(const std::filesystem::path& path, std::span<const TensorBytes> tensors,
                       const Metadata& metadata = {});

}  // namespace troika
