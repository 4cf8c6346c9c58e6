// Reads and writes safetensors files as bytes: a mapped file whose header is checked before
// anything is used, and a writer that never leaves half a file. tensors.h puts at::Tensor on top.
#pragma once

#include <troika/base/file.h>
#include <troika/checkpoint/encryption.h>
#include <troika/checkpoint/safetensors_header.h>
#include <troika/checkpoint/sha256.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// An open file. Its spans are valid as long as it lives (MappedFile says what happens when the file
// is shortened meanwhile). One that is encrypted is held in memory. Const access is thread safe.
class SafetensorsFile {
 public:
  // Opens the file. Throws DataError naming the path and, where one is at fault, the tensor; or
  // where it is encrypted and its key is not known (encryption.h).
  explicit SafetensorsFile(const std::filesystem::path& path);
  // Takes a file that is open; `path` is its name in messages.
  SafetensorsFile(MappedFile file, std::filesystem::path path);

  // Returns the entries in the order of their data.
  [[nodiscard]] std::span<const TensorEntry> entries() const { return header_.entries; }
  [[nodiscard]] const Metadata& metadata() const { return header_.metadata; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  // Returns the entry of a name, or nullptr.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  // Returns the entry of a name. Throws DataError naming the file, the name and the nearest
  // existing one.
  [[nodiscard]] const TensorEntry& at(std::string_view name) const;

  // Returns the bytes of one of entries(): little-endian, row-major, not necessarily aligned.
  [[nodiscard]] std::span<const std::byte> data(const TensorEntry& entry) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::optional<DecryptedFile> decrypted_;
  std::span<const std::byte> bytes_;  // of one or the other
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

// Writes a file tensor by tensor, or part by part, so that the rest need not be in memory. The file
// appears in commit(), or not at all. Not thread safe.
class SafetensorsWriter {
 public:
  struct Options {
    // Gets all bytes of the file, too, as they lie on disk; must live as long.
    Sha256* hash = nullptr;
    // Encrypts the file.
    std::optional<EncryptionKey> key = {};
  };

  // Begins the file. The begin and end of `tensors` are ignored; entries() gives the order of
  // writes. Throws StorageError naming the path, UsageError naming a tensor (see
  // lay_out_safetensors).
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> tensors,
                    const Metadata& metadata = {});
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> tensors,
                    const Metadata& metadata, Options options);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter() = default;

  [[nodiscard]] std::span<const TensorEntry> entries() const { return entries_; }
  // Writes all bytes of the next of entries(). Throws StorageError; InternalError when the size is
  // not the entry's.
  void write(std::span<const std::byte> bytes);
  // Writes some bytes of a tensor, from its byte `offset` on, in any order. Write each byte once,
  // and no tensor by write() in the same file, which may be neither hashed nor encrypted. Throws
  // StorageError; InternalError when there is no such tensor, or it ends before.
  void write_part(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);
  // Completes the file. Throws StorageError; InternalError when bytes are missing.
  void commit();
  // Returns the bytes of the file so far; call it after commit() where it is encrypted.
  [[nodiscard]] std::uint64_t bytes() const { return file_bytes_; }

 private:
  // Adds bytes to the file as it lies on disk.
  void append(std::span<const std::byte> bytes);
  // Adds bytes of the format.
  void put(std::span<const std::byte> bytes);

  std::vector<TensorEntry> entries_;
  std::size_t next_ = 0;
  std::string header_;
  std::uint64_t written_ = 0;  // of the data
  std::uint64_t file_bytes_ = 0;
  Sha256* hash_;
  AtomicFile file_;
  std::unique_ptr<Encryptor> encryptor_;  // writes to file_
};

// The bytes of a file, for what takes them at its own pace, as an upload does. Not thread safe.
class SafetensorsChunks {
 public:
  // Returns all bytes of a tensor. They last until the next call, or the end of the pieces.
  using BytesOf = std::function<std::span<const std::byte>(const TensorEntry& entry)>;

  // Asks for the bytes of each of `tensors` once, when its turn comes, in the order that
  // lay_out_safetensors() gives them. Throws UsageError as that does.
  SafetensorsChunks(std::vector<TensorEntry> tensors, BytesOf bytes_of,
                    SafetensorsWriter::Options options);

  // Returns the next bytes as they lie in the file, at most a few MiB, and none at its end. They
  // last until the next call.
  [[nodiscard]] std::span<const std::byte> next();
  // Returns how many bytes there have been.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::span<const std::byte> next_plain();

  std::vector<TensorEntry> entries_;
  BytesOf bytes_of_;
  std::string header_;
  std::span<const std::byte> rest_;  // of what is under way: the header, then one of entries_
  std::size_t next_ = 0;             // in entries_
  std::uint64_t bytes_ = 0;
  Sha256* hash_;
  std::vector<std::byte> sealed_;
  std::unique_ptr<Encryptor> encryptor_;  // writes to sealed_; none once the stream has ended
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
