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
using store_plugin::RemoteFiles;

char delimiter_of(const TextFormat& format, bool has_tabs) {
  if (format.delimiter != 0) return format.delimiter;
  if (has_tabs) return '\t';
  return format.decimal_point == ',' ? ';' : ',';
}

// What a file is, by its first bytes; plain text is known by its name.
enum class FileFormat { kParquet, kIpc, kIpcStream, kText, kJson, kUnknown };

struct Found {
  FileFormat kind = FileFormat::kUnknown;
  arrow::Compression::type compression = arrow::Compression::UNCOMPRESSED;
  bool has_tabs = false;
};

Found kind_of(std::string_view bytes, std::string name, const TextFormat& format) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  Found found;
  if (bytes.starts_with("PAR1")) return {FileFormat::kParquet};
  if (bytes.starts_with("ARROW1")) return {FileFormat::kIpc};
  if (bytes.starts_with("\xFF\xFF\xFF\xFF"sv)) return {FileFormat::kIpcStream};
  if (bytes.starts_with("\x1F\x8B"sv)) found.compression = arrow::Compression::GZIP;
  if (bytes.starts_with("\x28\xB5\x2F\xFD"sv)) found.compression = arrow::Compression::ZSTD;
  const auto is_called = [&](std::string_view end) {
    return name.find(std::string(end) + ".") != std::string::npos || name.ends_with(end);
  };
  found.has_tabs = is_called(".tsv");
  const bool is_text = format.any_name || found.has_tabs || is_called(".csv") ||
                       found.compression != arrow::Compression::UNCOMPRESSED;
  if (is_text) found.kind = FileFormat::kText;
  const bool is_json = is_called(".jsonl") || is_called(".ndjson") || is_called(".json");
  const bool is_csv = found.has_tabs || is_called(".csv");
  if (is_json && !is_csv && !format.any_name) found.kind = FileFormat::kJson;
  return found;
}

arrow::Result<std::string> head_of(arrow::io::RandomAccessFile& input) {
  ARROW_ASSIGN_OR_RAISE(const auto head, input.ReadAt(0, 8));
  return std::string(std::string_view(*head));
}

// Refuses text that others than us can read.
arrow::Status check_text(std::string_view bytes) {
  const bool marked = bytes.starts_with("\xFF\xFE"sv) || bytes.starts_with("\xFE\xFF"sv);
  const bool unmarked =
      bytes.size() >= 4 && ((bytes[0] != 0 && bytes[1] == 0 && bytes[2] != 0 && bytes[3] == 0) ||
                            (bytes[0] == 0 && bytes[1] != 0 && bytes[2] == 0 && bytes[3] != 0));
  if (marked || unmarked) return arrow::Status::Invalid("its text is UTF-16; expected UTF-8");
  if (bytes.starts_with("PK\x03\x04"sv)) return arrow::Status::Invalid("it is a ZIP archive");
  return arrow::Status::OK();
}

arrow::Result<std::unique_ptr<File>> open_as_found(Input input, std::string name,
                                                   TextFormat format) {
  ARROW_ASSIGN_OR_RAISE(const std::string head, head_of(*input));
  const Found found = kind_of(head, std::move(name), format);
  switch (found.kind) {
    case FileFormat::kIpc:
      return open_ipc(std::move(input));
    case FileFormat::kIpcStream:
      return open_ipc_stream(input);
    case FileFormat::kText:
      ARROW_RETURN_NOT_OK(check_text(head));
      format.delimiter = delimiter_of(format, found.has_tabs);
      return open_csv(input, found.compression, format);
    case FileFormat::kJson:
      ARROW_RETURN_NOT_OK(check_text(head));
      return open_json(input, found.compression, format.as_digits);
    default:
      return open_parquet(std::move(input));
  }
}

arrow::Result<std::unique_ptr<File>> open_any(Input input, std::string name,
                                              const TextFormat& format) {
  ARROW_ASSIGN_OR_RAISE(auto file, open_as_found(std::move(input), std::move(name), format));
  // Files of all formats derive from it.
  static_cast<SchemaFile&>(*file).show_digits(format.as_digits);
  return file;
}

class OpenText final : public TextStream {
 public:
  explicit OpenText(std::shared_ptr<arrow::io::InputStream> text) : text_(std::move(text)) {}
  [[nodiscard]] bool read(std::int64_t most, const TakeText& take, const TakeText& error) override {
    const auto bytes = text_->Read(most);
    if (bytes.ok()) {
      take(std::string_view(**bytes));
    } else {
      error(bytes.status().message());
    }
    return bytes.ok();
  }

 private:
  std::shared_ptr<arrow::io::InputStream> text_;
};

class Arrow final : public ArrowPlugin {
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
  [[nodiscard]] std::unique_ptr<File> open(const std::string& path, const TextFormat& format,
                                           const TakeText& error) const override {
    arrow::Result<std::unique_ptr<File>> file = open_path(path, format);
    if (file.ok()) return std::move(file).ValueUnsafe();
    error(file.status().message());
    return nullptr;
  }

  [[nodiscard]] std::unique_ptr<TextStream> open_text(const std::string& path,
                                                      const TakeText& error) const override {
    arrow::Result<std::unique_ptr<TextStream>> text = open_text_of(path);
    if (text.ok()) return std::move(text).ValueUnsafe();
    error(text.status().message());
    return nullptr;
  }

  [[nodiscard]] bool is_table(const std::string& path, const TextFormat& format) const override {
    const arrow::Result<Input> input = input_of(path);
    if (!input.ok()) return true;
    const arrow::Result<std::string> head = head_of(**input);
    return !head.ok() || kind_of(*head, name_of(path), format).kind != FileFormat::kUnknown;
  }

  [[nodiscard]] std::unique_ptr<Writer> create(std::span<const Column> columns, TakeBytes take,
                                               const TakeText& error) const override {
    arrow::Result<std::unique_ptr<Writer>> writer = create_parquet(columns, std::move(take));
    if (writer.ok()) return std::move(writer).ValueUnsafe();
    error(writer.status().message());
    return nullptr;
  }

 private:
  arrow::Result<std::unique_ptr<TextStream>> open_text_of(const std::string& path) const {
    ARROW_ASSIGN_OR_RAISE(const Input input, input_of(path));
    ARROW_ASSIGN_OR_RAISE(const std::string head, head_of(*input));
    const Found found = kind_of(head, name_of(path), {});
    if (found.kind == FileFormat::kParquet && head.starts_with("PAR1")) {
      return arrow::Status::Invalid("it is a Parquet file");
    }
    if (found.kind == FileFormat::kIpc || found.kind == FileFormat::kIpcStream) {
      return arrow::Status::Invalid("it is an Arrow file");
    }
    ARROW_RETURN_NOT_OK(check_text(head));
    ARROW_ASSIGN_OR_RAISE(auto text, troika::arrow_plugin::open_text(input, found.compression));
    return std::make_unique<OpenText>(std::move(text));
  }

  arrow::Result<std::unique_ptr<File>> open_path(const std::string& path,
                                                 const TextFormat& format) const {
    ARROW_ASSIGN_OR_RAISE(Input input, input_of(path));
    return open_any(std::move(input), name_of(path), format);
  }

  static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

  static arrow::Result<Input> input_of(const std::string& path) {
    if (store_plugin::is_uri(path))
      return RemoteFiles::instance().open(path, store_plugin::Caching::kBlocks);
    ARROW_ASSIGN_OR_RAISE(Input input, arrow::io::ReadableFile::Open(path));
    return input;
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ArrowPlugin* troika_arrow_plugin() {
  static const Arrow* const plugin = new Arrow();  // outlives what ends at exit
  return plugin;
}

}  // namespace troika::arrow_plugin
