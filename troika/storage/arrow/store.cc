// The plug-in for object stores, by Arrow's file systems.
#include <arrow/buffer.h>
#include <troika/storage/arrow/remote.h>
#include <troika/storage/arrow/retries.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace troika::store_plugin {
namespace {

bool passed(const arrow::Status& status, const TakeText& error) {
  if (!status.ok()) error(status.message());
  return status.ok();
}

class RemoteInputFile final : public OpenFile {
 public:
  RemoteInputFile(RemoteFiles::Input input, std::int64_t size)
      : input_(std::move(input)), size_(size) {}

  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] bool read_at(std::int64_t offset, std::span<std::byte> out,
                             const TakeText& error) const override {
    const auto count = static_cast<std::int64_t>(out.size());
    const arrow::Result<std::int64_t> done = input_->ReadAt(offset, count, out.data());
    if (!done.ok()) return passed(done.status(), error);
    if (*done == count) return true;
    return passed(arrow::Status::IOError("it ends before its size"), error);
  }

 private:
  RemoteFiles::Input input_;
  std::int64_t size_;
};

class Store final : public StorePlugin {
 public:
  [[nodiscard]] bool list(const std::string& uri, Missing missing, const TakeFile& take,
                          const TakeText& error) const override {
    return passed(RemoteFiles::instance().list(uri, take, missing), error);
  }
  [[nodiscard]] bool remember(const std::string& uri, const TakeText& error) const override {
    return passed(RemoteFiles::instance().remember(uri), error);
  }
  [[nodiscard]] std::unique_ptr<OpenFile> open(const std::string& uri, Caching keep,
                                               const TakeText& error) const override {
    arrow::Result<std::unique_ptr<OpenFile>> file = open_file(uri, keep);
    if (file.ok()) return std::move(file).ValueUnsafe();
    error(file.status().message());
    return nullptr;
  }
  [[nodiscard]] bool read(const std::string& uri, Caching keep, const TakeBytes& take,
                          const TakeText& error) const override {
    return passed(read_all(uri, keep, take), error);
  }
  [[nodiscard]] bool write(const std::string& uri, const NextBytes& next, Attempts attempts,
                           const TakeText& error) const override {
    return passed(RemoteFiles::instance().write(uri, next, attempts), error);
  }
  void set_patience(double seconds, const TakeText& warning) const override {
    Patience::instance().set(seconds, warning);
  }
  void set_cache(const Blocks& blocks) const override { RemoteFiles::instance().set_cache(blocks); }
  [[nodiscard]] bool remove(const std::string& uri, const TakeText& error) const override {
    return passed(RemoteFiles::instance().remove(uri), error);
  }

 private:
  static arrow::Result<std::unique_ptr<OpenFile>> open_file(const std::string& uri, Caching keep) {
    ARROW_ASSIGN_OR_RAISE(auto input, RemoteFiles::instance().open(uri, keep));
    ARROW_ASSIGN_OR_RAISE(const std::int64_t size, input->GetSize());
    return std::make_unique<RemoteInputFile>(std::move(input), size);
  }
  static arrow::Status read_all(const std::string& uri, Caching keep, const TakeBytes& take) {
    constexpr std::int64_t kPiece = std::int64_t{8} << 20;
    ARROW_ASSIGN_OR_RAISE(const auto file, RemoteFiles::instance().open(uri, keep));
    ARROW_ASSIGN_OR_RAISE(const std::int64_t size, file->GetSize());
    for (std::int64_t begin = 0; begin < size; begin += kPiece) {
      ARROW_ASSIGN_OR_RAISE(const auto piece, file->ReadAt(begin, std::min(kPiece, size - begin)));
      if (piece->size() != std::min(kPiece, size - begin)) {
        return arrow::Status::IOError("it ends before its size");
      }
      const auto* data = reinterpret_cast<const std::byte*>(piece->data());
      if (!take({data, static_cast<std::size_t>(piece->size())})) {
        return arrow::Status::IOError("it is longer than expected");
      }
    }
    return file->Close();
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const StorePlugin* troika_store_plugin() {
  static const Store* const plugin = new Store();  // outlives what ends at exit
  return plugin;
}

}  // namespace troika::store_plugin
