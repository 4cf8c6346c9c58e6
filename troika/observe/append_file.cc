#include <fcntl.h>
#include <sys/stat.h>
#include <troika/observe/append_file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace troika {

AppendFile::AppendFile(std::filesystem::path path, Mode mode) : path_(std::move(path)) {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | (mode == Mode::kTruncate ? O_TRUNC : 0);
  fd_ = UniqueFd(::open(path_.c_str(), flags, 0666));
  if (!fd_.valid()) throw_storage_error("open", path_, errno);
  if (mode == Mode::kKeepLines) keep_complete_lines();
}

// Searches backwards for the last newline, and makes it the end of the file.
void AppendFile::keep_complete_lines() {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw_storage_error("read", path_, errno);
  std::array<char, 4096> block;
  std::int64_t end = status.st_size;
  while (end > 0) {
    const std::int64_t begin = std::max<std::int64_t>(0, end - std::ssize(block));
    const ssize_t count =
        ::pread(fd_.get(), block.data(), static_cast<std::size_t>(end - begin), begin);
    if (count != end - begin) throw_storage_error("read", path_, count < 0 ? errno : EIO);
    const std::size_t newline =
        std::string_view(block.data(), static_cast<std::size_t>(count)).rfind('\n');
    if (newline != std::string_view::npos) {
      end = begin + static_cast<std::int64_t>(newline) + 1;
      break;
    }
    end = begin;
  }
  if (end != status.st_size && ::ftruncate(fd_.get(), end) != 0) {
    throw_storage_error("truncate", path_, errno);
  }
  size_ = end;
}

void AppendFile::append(std::string_view record) {
  std::size_t written = 0;
  while (written < record.size()) {
    const ssize_t count = ::pwrite(fd_.get(), record.data() + written, record.size() - written,
                                   size_ + static_cast<std::int64_t>(written));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int reason = count < 0 ? errno : ENOSPC;
      // Shrinking needs no space. Where even that fails, the first reason is what the user needs.
      [[maybe_unused]] const int cut = ::ftruncate(fd_.get(), size_);
      throw_storage_error("write", path_, reason);
    }
    written += static_cast<std::size_t>(count);
  }
  size_ += static_cast<std::int64_t>(record.size());
}

void AppendFile::sync() {
  // EINVAL: a pipe or device, which holds nothing that could be synced.
  if (::fdatasync(fd_.get()) != 0 && errno != EINVAL) throw_storage_error("write", path_, errno);
}

}  // namespace troika
