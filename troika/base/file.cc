#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <troika/base/bytes.h>
#include <troika/base/credentials.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/open_file_limit.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

namespace troika {
namespace {

std::string read_hint(int error_number) {
  switch (error_number) {
    case ENOENT:
      return "check the path; relative ones start at the folder the command was started in";
    case EACCES:
      return "check its permissions and those of its folders";
    case EMFILE:
      return open_file_hint();
    default:
      return {};
  }
}

[[noreturn]] void throw_read_error(const std::filesystem::path& path, int error_number) {
  throw DataError(
      "cannot read " + shown_path(path) + ": " + std::generic_category().message(error_number),
      read_hint(error_number));
}

struct OpenedFile {
  UniqueFd fd;
  std::uint64_t size = 0;
};

OpenedFile open_regular(const std::filesystem::path& path) {
  // Non-blocking, because opening a pipe would otherwise wait for its writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) throw_read_error(path, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_read_error(path, errno);
  if (S_ISDIR(status.st_mode))
    throw DataError("cannot read " + shown_path(path) + ": it is a folder");
  if (!S_ISREG(status.st_mode)) {
    throw DataError("cannot read " + shown_path(path) + ": not a regular file",
                    "pipes and devices are not read; write the content to a file first");
  }
  return {std::move(fd), static_cast<std::uint64_t>(status.st_size)};
}

std::string storage_hint(int error_number) {
  switch (error_number) {
    case ENOSPC:
      return "the disk is full: free some space or choose another folder";
    case EDQUOT:
      return "the disk quota is used up: free some space or choose another folder";
    case EROFS:
      return "the file system is read-only: choose another folder";
    case EACCES:
    case EPERM:
      return "check the permissions of the folder or choose another one";
    case ENOENT:
    case ENOTDIR:
      return "its folder does not exist";
    case EMFILE:
      return open_file_hint();
    case EFBIG:
      return "a process may not write files as large: raise the limit, as by `ulimit -f unlimited`";
    default:
      return {};
  }
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  std::random_device entropy;
  const std::uint64_t tag = static_cast<std::uint64_t>(entropy()) << 32 | entropy();
  // Short, so that a long name stays within the file system's limit.
  return path.parent_path() / (".tmp-" + hex(tag));
}

}  // namespace

std::string shown_path(const std::filesystem::path& path) {
  constexpr std::size_t kMaxBytes = 400;
  return quote(without_credentials(path.native()), kMaxBytes);
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int UniqueFd::release() noexcept {
  return std::exchange(fd_, -1);
}

void UniqueFd::reset() noexcept {
  if (valid()) ::close(release());
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const OpenedFile file = open_regular(path);
  if (file.size == 0) return;  // a mapping of no bytes is an error of mmap
  void* address = ::mmap(nullptr, file.size, PROT_READ, MAP_SHARED, file.fd.get(), 0);
  if (address == MAP_FAILED) throw_read_error(path, errno);
  bytes_ = {static_cast<const std::byte*>(address), file.size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

void MappedFile::unmap() noexcept {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  bytes_ = {};
}

std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const OpenedFile file = open_regular(path);
  std::string content;
  content.reserve(std::min(file.size, max_bytes));
  // The size may lie (files of the kernel state none) or change, so read to the end.
  char block[65536];
  for (;;) {
    const ssize_t count = ::read(file.fd.get(), block, sizeof(block));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_read_error(path, errno);
    if (count == 0) return content;
    if (static_cast<std::uint64_t>(count) > max_bytes - content.size()) {
      throw DataError("cannot read " + shown_path(path) + ": longer than " +
                      format_bytes(max_bytes));
    }
    content.append(block, static_cast<std::size_t>(count));
  }
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(temporary_name(path_)) {
  fd_ = UniqueFd(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd_.valid()) throw_storage_error("write", path_, errno);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

// The disk begins before commit() waits for it: whenever there are some MiB more, however many
// calls they have come in.
void AtomicFile::write(std::span<const std::byte> bytes) {
  constexpr off_t kPiece = off_t{8} << 20;
  off_t end = ::lseek(fd_.get(), 0, SEEK_CUR);
  while (!bytes.empty()) {
    const auto room = static_cast<std::size_t>(kPiece - end % kPiece);
    const auto piece = bytes.first(std::min(bytes.size(), room));
    write_all(fd_.get(), piece, path_);
    if (piece.size() == room) {
      (void)::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    end += std::ssize(piece);
    bytes = bytes.subspan(piece.size());
  }
}
void AtomicFile::write(std::string_view text) {
  write(bytes_of(text));
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_storage_error("write", path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void AtomicFile::commit() {
  check(!temporary_.empty(), "AtomicFile::commit called twice");
  if (::fsync(fd_.get()) != 0) throw_storage_error("write", path_, errno);
  // Network file systems may report a full disk as late as here.
  if (::close(fd_.release()) != 0) throw_storage_error("write", path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw_storage_error("write", path_, errno);
  temporary_.clear();
  sync_folder(path_.parent_path());
}

void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}
void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  write_file_atomically(path, bytes_of(text));
}

void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_storage_error("write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

int reserve_space(int fd, std::uint64_t begin, std::uint64_t size) {
  int error = 0;
  do {
    error =
        ::fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(size)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != EPERM && error != ENOSYS && error != EOPNOTSUPP) return error;
  const std::vector<char> zeros(std::size_t{1} << 20);
  for (const std::uint64_t end = begin + size; begin < end;) {
    const std::size_t count = std::min<std::uint64_t>(zeros.size(), end - begin);
    const ssize_t written = ::pwrite(fd, zeros.data(), count, static_cast<off_t>(begin));
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) begin += static_cast<std::uint64_t>(written);
  }
  return 0;
}

void make_folders(const std::filesystem::path& path) {
  std::error_code error;
  std::vector<std::filesystem::path> parents;  // of those that are missing
  for (std::filesystem::path each = path; !each.empty() && !std::filesystem::exists(each, error);
       each = each.parent_path()) {
    parents.push_back(each.parent_path());
  }
  std::filesystem::create_directories(path, error);
  if (error) throw_storage_error("make the folder", path, error.value());
  for (const std::filesystem::path& parent : parents) {
    // Write without read permission is enough to make one.
    if (parent.empty() || ::access(parent.c_str(), R_OK) == 0) sync_folder(parent);
  }
}

std::filesystem::path make_temporary_folder(std::string_view prefix) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) {
    const char* named = std::getenv("TMPDIR");
    throw StorageError("TMPDIR = " + shown_path(named != nullptr ? named : "/tmp") +
                           " cannot hold temporary files: " + error.message(),
                       "set TMPDIR to a folder that exists and can be written");
  }
  std::string name = (parent / (std::string(prefix) + "-XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) throw_storage_error("make a folder like", name, errno);
  return name;
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path named = folder.empty() ? std::filesystem::path(".") : folder;
  const UniqueFd fd(::open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) throw_storage_error("open the folder", named, errno);
  // EINVAL: the file system keeps no folders that could be synced.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) throw_storage_error("sync", named, errno);
}

void throw_storage_error(std::string_view action, const std::filesystem::path& path,
                         int error_number) {
  throw StorageError("cannot " + std::string(action) + " " + shown_path(path) + ": " +
                         std::generic_category().message(error_number),
                     storage_hint(error_number));
}

}  // namespace troika
