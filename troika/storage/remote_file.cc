#include <troika/base/error.h>
#include <troika/storage/first_line_into.h>
#include <troika/storage/object_store.h>
#include <troika/storage/remote_file.h>
#include <troika/storage/store_library.h>

#include <string_view>
#include <utility>

namespace troika {

RemoteFile::RemoteFile(std::string url) : url_(std::move(url)) {
  std::string reason;
  file_ = store_library().open(url_, store_plugin::Caching::kBlocks, first_line_into(reason));
  if (!file_) throw_unread("read " + shown_place(url_), reason);
}

RemoteFile::RemoteFile(RemoteFile&&) noexcept = default;
RemoteFile::~RemoteFile() = default;

std::int64_t RemoteFile::size() const {
  return file_->size();
}

void RemoteFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
  std::string reason;
  if (out.empty() || file_->read_at(offset, out, first_line_into(reason))) return;
  throw_unread("read " + shown_place(url_), reason);
}

std::vector<ListedFile> list_remote(const std::string& url) {
  std::vector<ListedFile> files;
  std::string reason;
  const auto take = [&](std::string_view found, std::int64_t bytes) {
    files.push_back({std::string(found), bytes});
  };
  if (!store_library().list(url, store_plugin::Missing::kIsAnError, take,
                            first_line_into(reason))) {
    throw_unread("list " + shown_place(url), reason);
  }
  return files;
}

void remember_store_options(const std::string& url) {
  std::string reason;
  if (store_library().remember(url, first_line_into(reason))) return;
  throw_unread("use " + shown_place(url), reason);
}

}  // namespace troika
