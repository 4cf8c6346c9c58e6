#include <arrow/io/file.h>
#include <arrow/io/interfaces.h>
#include <arrow/util/thread_pool.h>
#include <troika/data/arrow/files.h>
#include <troika/storage/arrow/remote.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace troika::arrow_plugin {

namespace {

using namespace std::string_view_literals;
using store_plugin::Missing;
using store_plugin::RemoteFiles;

char delimiter_of(const TextFormat& format, bool has_tabs) {
  if (format.delimiter != 0) return format.delimiter;
  if (has_tabs) return '\t';
  return format.decimal_point == ',' ? ';' : ',';
}

// The file's first bytes say what it is; plain text is known by its name.
arrow::Result<std::unique_ptr<File>> open_any(Input input, std::string name, TextFormat format) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  ARROW_ASSIGN_OR_RAISE(const auto head, input->ReadAt(0, 8));
  const std::string_view bytes(*head);
  if (bytes.starts_with("ARROW1")) return open_ipc(std::move(input));
  if (bytes.starts_with("\xFF\xFF\xFF\xFF"sv)) return open_ipc_stream(input);
  auto compression = arrow::Compression::UNCOMPRESSED;
  if (bytes.starts_with("\x1F\x8B"sv)) compression = arrow::Compression::GZIP;
  if (bytes.starts_with("\x28\xB5\x2F\xFD"sv)) compression = arrow::Compression::ZSTD;
  const auto is_called = [&](std::string_view end) {
    return name.find(std::string(end) + ".") != std::string::npos || name.ends_with(end);
  };
  const bool tabs = is_called(".tsv");
  const bool text = format.any_name || tabs || is_called(".csv") ||
                    compression != arrow::Compression::UNCOMPRESSED;
  if (text && !bytes.starts_with("PAR1")) {
    format.delimiter = delimiter_of(format, tabs);
    return open_csv(input, compression, format);
  }
  return open_parquet(std::move(input));
}

class Arrow final : public Plugin {
 public:
  [[nodiscard]] bool set_threads(Threads threads, const TakeText& error) const override {
    arrow::Status status = arrow::SetCpuThreadPoolCapacity(threads.decoding);
    if (status.ok()) status = arrow::io::SetIOThreadPoolCapacity(threads.reading);
    if (!status.ok()) error(status.message());
    return status.ok();
  }
  [[nodiscard]] Threads threads() const override {
    return {arrow::GetCpuThreadPoolCapacity(), arrow::io::GetIOThreadPoolCapacity()};
  }
  [[nodiscard]] bool list(const std::string& uri, const TakeFile& take,
                          const TakeText& error) const override {
    const arrow::Status status = RemoteFiles::instance().list(uri, take, Missing::kIsAnError);
    if (!status.ok()) error(status.message());
    return status.ok();
  }
  [[nodiscard]] std::unique_ptr<File> open(const std::string& path, const TextFormat& format,
                                           const TakeText& error) const override {
    arrow::Result<std::unique_ptr<File>> file = open_path(path, format);
    if (file.ok()) return std::move(file).ValueUnsafe();
    error(file.status().message());
    return nullptr;
  }

  [[nodiscard]] std::unique_ptr<Writer> create(std::span<const Column> columns, TakeBytes take,
                                               const TakeText& error) const override {
    arrow::Result<std::unique_ptr<Writer>> writer = create_parquet(columns, std::move(take));
    if (writer.ok()) return std::move(writer).ValueUnsafe();
    error(writer.status().message());
    return nullptr;
  }

 private:
  arrow::Result<std::unique_ptr<File>> open_path(const std::string& path,
                                                 const TextFormat& format) const {
    Input input;
    if (store_plugin::is_uri(path)) {
      ARROW_ASSIGN_OR_RAISE(input, RemoteFiles::instance().open(path));
    } else {
      ARROW_ASSIGN_OR_RAISE(input, arrow::io::ReadableFile::Open(path));
    }
    return open_any(std::move(input), path.substr(path.rfind('/') + 1), format);
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const Plugin* troika_arrow_plugin() {
  static const Arrow* const plugin = new Arrow();  // outlives what ends at exit
  return plugin;
}

}  // namespace troika::arrow_plugin
