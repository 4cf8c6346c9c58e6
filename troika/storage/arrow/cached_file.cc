#include <arrow/buffer.h>
#include <arrow/util/key_value_metadata.h>
#include <troika/storage/arrow/cached_file.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace troika::store_plugin {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
// A request costs a round trip, so blocks that are missing side by side are read together.
constexpr std::int64_t kMostBlocksOfARequest = 64;

class CachedFile final : public arrow::io::RandomAccessFile {
 public:
  CachedFile(RemoteIdentity identity, const Blocks& blocks, RemoteInput remote,
             std::function<arrow::Result<RemoteInput>()> open)
      : identity_(std::move(identity)),
        blocks_(blocks),
        remote_(std::move(remote)),
        open_(std::move(open)) {}

  arrow::Status Close() override {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    return remote_ ? remote_->Close() : arrow::Status::OK();
  }
  [[nodiscard]] bool closed() const override { return closed_; }
  arrow::Result<std::int64_t> Tell() const override { return position_; }
  arrow::Status Seek(std::int64_t position) override {
    position_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<std::int64_t> GetSize() override { return identity_.size; }

  arrow::Result<std::int64_t> Read(std::int64_t count, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t done, ReadAt(position_, count, out));
    position_ += done;
    return done;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t count) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(position_, count));
    position_ += buffer->size();
    return buffer;
  }

  using RandomAccessFile::ReadAt;
  arrow::Result<std::int64_t> ReadAt(std::int64_t position, std::int64_t count,
                                     void* out) override {
    if (position < 0 || count < 0) return arrow::Status::Invalid("a read before the beginning");
    const std::int64_t end = std::min(position + count, identity_.size);
    auto* const bytes = static_cast<std::byte*>(out);
    for (std::int64_t at = position; at < end;) {
      const std::int64_t stop = std::min(end, (at / kBlockBytes + 1) * kBlockBytes);
      if (is_here(at, stop, bytes + (at - position))) {
        at = stop;
        continue;
      }
      ARROW_ASSIGN_OR_RAISE(const std::int64_t passed, fetch(at, end, bytes + (at - position)));
      at += passed;
    }
    return std::max<std::int64_t>(0, end - position);
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(std::int64_t position,
                                                       std::int64_t count) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(count));
    ARROW_ASSIGN_OR_RAISE(const std::int64_t done, ReadAt(position, count, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(done));
    return buffer;
  }

 private:
  // Takes bytes of one block.
  [[nodiscard]] bool is_here(std::int64_t begin, std::int64_t end, std::byte* out) const {
    return blocks_.read(identity_.text, begin / kBlockBytes,
                        static_cast<std::size_t>(begin % kBlockBytes),
                        {out, static_cast<std::size_t>(end - begin)});
  }

  // Reads the block of `begin`, which is not here, and those behind it that are not here either, up
  // to `end`. Copies what was asked for to `out`. Returns how many bytes that is.
  arrow::Result<std::int64_t> fetch(std::int64_t begin, std::int64_t end, std::byte* out) {
    const std::int64_t first = begin / kBlockBytes;
    std::int64_t last = first + 1;
    std::byte probe{};
    while (last * kBlockBytes < end && last - first < kMostBlocksOfARequest &&
           !is_here(last * kBlockBytes, last * kBlockBytes + 1, &probe)) {
      ++last;
    }
    const std::int64_t from = first * kBlockBytes,
                       to = std::min(last * kBlockBytes, identity_.size);
    ARROW_ASSIGN_OR_RAISE(const RemoteInput remote, remote_file());
    ARROW_ASSIGN_OR_RAISE(const auto piece, remote->ReadAt(from, to - from));
    if (piece->size() != to - from) return arrow::Status::IOError("it ends before its size");
    const auto* bytes = reinterpret_cast<const std::byte*>(piece->data());
    for (std::int64_t block = first; block < last; ++block) {
      const std::int64_t start = block * kBlockBytes, stop = std::min(start + kBlockBytes, to);
      blocks_.put(identity_.text, block,
                  {bytes + (start - from), static_cast<std::size_t>(stop - start)});
    }
    const std::int64_t asked = std::min(end, to) - begin;
    std::copy_n(bytes + (begin - from), asked, out);
    return asked;
  }

  arrow::Result<RemoteInput> remote_file() {
    const std::scoped_lock lock(mutex_);
    if (!remote_) {
      ARROW_ASSIGN_OR_RAISE(remote_, open_());
      ARROW_ASSIGN_OR_RAISE(const auto now, identity_of(address(), *remote_));
      if (!now || now->text != identity_.text) {
        return arrow::Status::IOError("it has changed since it was opened first");
      }
    }
    return remote_;
  }
  [[nodiscard]] std::string address() const {
    return identity_.text.substr(0, identity_.text.find('\n'));
  }

  RemoteIdentity identity_;
  const Blocks& blocks_;
  std::mutex mutex_;
  RemoteInput remote_;
  std::function<arrow::Result<RemoteInput>()> open_;
  std::int64_t position_ = 0;
  bool closed_ = false;
};

}  // namespace

arrow::Result<std::optional<RemoteIdentity>> identity_of(const std::string& uri,
                                                         arrow::io::RandomAccessFile& file) {
  ARROW_ASSIGN_OR_RAISE(const auto metadata, file.ReadMetadata());
  const int tag = metadata ? metadata->FindKey("ETag") : -1;
  if (tag < 0) return std::optional<RemoteIdentity>();
  ARROW_ASSIGN_OR_RAISE(const std::int64_t size, file.GetSize());
  return std::optional(RemoteIdentity{
      uri.substr(0, uri.find('?')) + "\n" + std::to_string(size) + "\n" + metadata->value(tag),
      size});
}

RemoteInput open_cached(RemoteIdentity identity, const Blocks& blocks, RemoteInput remote,
                        std::function<arrow::Result<RemoteInput>()> open) {
  return std::make_shared<CachedFile>(std::move(identity), blocks, std::move(remote),
                                      std::move(open));
}

}  // namespace troika::store_plugin
