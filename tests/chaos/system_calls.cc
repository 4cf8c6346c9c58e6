// The system's calls that change files, as a library that is loaded before the C library: each one
// passes through the layer between a program and its files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chaos/watched_calls.h>
#include <cstdarg>
#include <cstdio>

// The system's calls. Names and types are the C library's.
// NOLINTBEGIN(readability-identifier-naming)
namespace chaos = troika::chaos;

namespace {
mode_t mode_in(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}
}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const now = chaos::next(&::open, "open");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return chaos::open_watched(chaos::absolute(AT_FDCWD, path), flags,
                             [&] { return now(path, flags, mode); });
}

int open64(const char* path, int flags, ...) {
  static auto* const now = chaos::next(&::open64, "open64");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return chaos::open_watched(chaos::absolute(AT_FDCWD, path), flags,
                             [&] { return now(path, flags, mode); });
}

int openat(int folder, const char* path, int flags, ...) {
  static auto* const now = chaos::next(&::openat, "openat");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return chaos::open_watched(chaos::absolute(folder, path), flags,
                             [&] { return now(folder, path, flags, mode); });
}

ssize_t write(int fd, const void* bytes, size_t count) {
  static auto* const now = chaos::next(&::write, "write");
  return chaos::write_watched(fd, bytes, count, -1,
                              [&](std::size_t size) { return now(fd, bytes, size); });
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  static auto* const now = chaos::next(&::pwrite, "pwrite");
  return chaos::write_watched(fd, bytes, count, offset,
                              [&](std::size_t size) { return now(fd, bytes, size, offset); });
}

int fsync(int fd) {
  static auto* const now = chaos::next(&::fsync, "fsync");
  return chaos::sync_watched(fd, [&] { return now(fd); });
}

int fdatasync(int fd) {
  static auto* const now = chaos::next(&::fdatasync, "fdatasync");
  return chaos::sync_watched(fd, [&] { return now(fd); });
}

int ftruncate(int fd, off_t size) noexcept {
  static auto* const now = chaos::next(&::ftruncate, "ftruncate");
  return chaos::other_watched(fd, [&] { return now(fd, size); });
}

int close(int fd) {
  return chaos::close_watched(fd);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const now = chaos::next(&::rename, "rename");
  return chaos::rename_watched(chaos::absolute(AT_FDCWD, from), chaos::absolute(AT_FDCWD, to),
                               [&] { return now(from, to); });
}

int unlink(const char* path) noexcept {
  static auto* const now = chaos::next(&::unlink, "unlink");
  return chaos::remove_watched(chaos::absolute(AT_FDCWD, path), [&] { return now(path); });
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto* const now = chaos::next(&::unlinkat, "unlinkat");
  return chaos::remove_watched(chaos::absolute(folder, path),
                               [&] { return now(folder, path, flags); });
}

int rmdir(const char* path) noexcept {
  static auto* const now = chaos::next(&::rmdir, "rmdir");
  return chaos::remove_watched(chaos::absolute(AT_FDCWD, path), [&] { return now(path); });
}

int remove(const char* path) noexcept {
  static auto* const now = chaos::next(&::remove, "remove");
  return chaos::remove_watched(chaos::absolute(AT_FDCWD, path), [&] { return now(path); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const now = chaos::next(&::mkdir, "mkdir");
  return chaos::make_folder_watched(chaos::absolute(AT_FDCWD, path),
                                    [&] { return now(path, mode); });
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
