// Files: read-only mappings, bounded reads, and writes that are either all there or not there. A
// failure to read is a DataError, a failure to write a StorageError; both name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace troika {

// Returns a path as messages show it: in quotes, on one line, and not endless.
[[nodiscard]] std::string shown_path(const std::filesystem::path& path);

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  // Releases ownership of the descriptor, and returns it.
  [[nodiscard]] int release() noexcept;
  // Closes the descriptor, if there is one. Ignores an error of close(2): a writer must fsync
  // before.
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// The bytes of a regular file, mapped read-only and shared. An empty file gives an empty span.
// Throws DataError naming the path when it is missing, unreadable or not a regular file. If another
// process shortens the file while it is mapped, reading the lost part raises SIGBUS: files of
// troika are replaced by rename, never shortened in place. Const access is thread safe.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile() { unmap(); }

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t size() const { return bytes_.size(); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void unmap() noexcept;

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// Returns the content of a regular file. Throws DataError naming the path when it is missing,
// unreadable, not a regular file, or longer than `max_bytes`.
[[nodiscard]] std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// Writes beside `path` under a temporary name and takes its place in commit(): write, fsync,
// rename, fsync of the folder. Until then, and whenever anything fails, what was at `path` stays as
// it was and the temporary file is removed. All members throw StorageError. Not thread safe.
class AtomicFile {
 public:
  // Requires that the folder exists.
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Writes at a place of the file, counted from its beginning. write() goes on where it was.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Puts the file in its place. Call it at most once, and write nothing afterwards.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty once committed
  UniqueFd fd_;
};

// Write a file as AtomicFile does, in one call.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// Writes all of `bytes` to an open descriptor, however many calls it takes. Throws StorageError
// naming `path`.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);

// Reserves room for `size` bytes from `begin` of a file that holds nothing there yet, so that no
// later write to them, nor to a mapping of them, finds the disk full. Writes zeros where the system
// does not let it ask (a container's seccomp filter). Returns 0 or the error's number.
[[nodiscard]] int reserve_space(int fd, std::uint64_t begin, std::uint64_t size);

// Makes a folder and its parents where they are missing, durably. Throws StorageError.
void make_folders(const std::filesystem::path& path);

// Makes a fresh folder among the temporary files (TMPDIR) that only this user may enter; its name
// begins with `prefix`. Throws StorageError.
[[nodiscard]] std::filesystem::path make_temporary_folder(std::string_view prefix);

// Makes the names inside a folder durable. Throws StorageError.
void sync_folder(const std::filesystem::path& folder);

// Throws StorageError "cannot ACTION 'PATH': REASON" with a hint for the usual reasons: a full
// disk, a quota, a read-only file system, missing rights, a missing folder.
[[noreturn]] void throw_storage_error(std::string_view action, const std::filesystem::path& path,
                                      int error_number);

}  // namespace troika
