#include <fcntl.h>
#include <troika/base/error.h>
#include <troika/data/sources/text/text_file.h>
#include <troika/storage/object_store.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace troika {
namespace {

[[noreturn]] void throw_unreadable(const FoundFile& file, int error_number) {
  throw DataError("cannot read the data file " + shown_path(file.path) + ": " +
                      std::generic_category().message(error_number),
                  error_number == EACCES ? "check its permissions and those of its folders" : "");
}

[[noreturn]] void throw_shorter(const FoundFile& file) {
  throw DataError("the data file " + shown_path(file.path) + " is shorter than the " +
                      std::to_string(file.size) + " bytes it had when it was found",
                  "data files must not change while they are used");
}

}  // namespace

TextFile::TextFile(const FoundFile& file) : file_(&file) {
  if (is_remote(file.path)) {
    remote_.emplace(file.path);
    return;
  }
  fd_ = UniqueFd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd_.valid()) throw_unreadable(file, errno);
}

void TextFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
  if (remote_) {
    if (offset + std::ssize(out) > remote_->size()) throw_shorter(*file_);
    remote_->read_at(offset, out);
    return;
  }
  while (!out.empty()) {
    const ssize_t count = ::pread(fd_.get(), out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_unreadable(*file_, errno);
    if (count == 0) throw_shorter(*file_);
    out = out.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

std::string TextFile::text_at(std::int64_t offset, std::size_t max_bytes) const {
  const auto left = static_cast<std::size_t>(std::max<std::int64_t>(0, file_->size - offset));
  std::string text(std::min(left, max_bytes), '\0');
  read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace troika
