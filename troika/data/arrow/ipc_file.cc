// Arrow's own files and streams, and tables of other formats that are converted to one without a
// name.
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/ipc/writer.h>
#include <arrow/util/byte_size.h>
#include <fcntl.h>
#include <troika/data/arrow/convert.h>
#include <troika/data/arrow/files.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

namespace troika::arrow_plugin {
namespace {

// Rows of a group of a converted file. Larger batches are cut, smaller ones are joined.
constexpr std::int64_t kGroupRows = 65536;
// Text is joined up to this size, so that a group of long rows fits in memory.
constexpr std::int64_t kGroupBytes = 32 << 20;

using BatchReader = std::shared_ptr<arrow::ipc::RecordBatchFileReader>;

// Reads these columns alone; none stands for all.
arrow::Result<BatchReader> reader_of(const Input& input, std::vector<int> columns) {
  arrow::ipc::IpcReadOptions options = arrow::ipc::IpcReadOptions::Defaults();
  options.included_fields = std::move(columns);
  options.use_threads = false;
  return arrow::ipc::RecordBatchFileReader::Open(input, options);
}

class IpcFile final : public SchemaFile {
 public:
  IpcFile(Input input, std::shared_ptr<arrow::Schema> schema, std::vector<std::int64_t> rows,
          bool is_converted)
      : SchemaFile(std::move(schema)),
        input_(std::move(input)),
        rows_(std::move(rows)),
        is_converted_(is_converted) {}

  [[nodiscard]] std::int64_t groups() const override {
    return static_cast<std::int64_t>(rows_.size());
  }
  [[nodiscard]] std::int64_t rows(std::int64_t group) const override {
    return rows_[static_cast<std::size_t>(group)];
  }
  [[nodiscard]] bool is_converted() const override { return is_converted_; }

  [[nodiscard]] bool read(std::int64_t group, std::span<const std::int64_t> columns,
                          const TakeValues& take, const TakeText& error) const override {
    const arrow::Status status = read_batch(group, columns, take);
    if (!status.ok()) error(status.message());
    return status.ok();
  }

 private:
  arrow::Status read_batch(std::int64_t group, std::span<const std::int64_t> columns,
                           const TakeValues& take) const {
    std::vector<int> wanted;
    for (const std::int64_t column : columns) {
      if (std::ranges::count(wanted, path_of(column).field) == 0) {
        wanted.push_back(path_of(column).field);
      }
    }
    if (!reader_ || wanted != wanted_) {
      ARROW_ASSIGN_OR_RAISE(reader_, reader_of(input_, wanted));
      wanted_ = wanted;
    }
    if (group >= reader_->num_record_batches()) {
      return arrow::Status::IOError("its number of batches changed");
    }
    ARROW_ASSIGN_OR_RAISE(const auto batch, reader_->ReadRecordBatch(static_cast<int>(group)));
    ARROW_RETURN_NOT_OK(batch->ValidateFull());  // the file's offsets are not to be trusted
    if (batch->num_rows() != rows(group))
      return arrow::Status::IOError("its number of rows changed");
    Converter converter;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      ARROW_ASSIGN_OR_RAISE(const auto column, find(*batch, columns[i]));
      ARROW_ASSIGN_OR_RAISE(const Values values, converter.convert(*column));
      take(i, values);
    }
    return arrow::Status::OK();
  }

  Input input_;
  std::vector<std::int64_t> rows_;
  bool is_converted_;
  mutable BatchReader reader_;  // of the columns that were read last
  mutable std::vector<int> wanted_;
};

// Opens a file that has no name, and ends with its descriptor.
arrow::Result<int> open_nameless() {
  const char* named = std::getenv("TMPDIR");
  std::string path =
      std::string(named != nullptr && *named != '\0' ? named : "/tmp") + "/troika-XXXXXX";
  const int descriptor = ::mkostemp(path.data(), O_CLOEXEC);
  if (descriptor < 0) {
    return arrow::Status::IOError("cannot make a temporary file as ", path, ": ",
                                  std::generic_category().message(errno));
  }
  ::unlink(path.c_str());
  return descriptor;
}

// Joins small batches, so that a group is worth reading.
class GroupWriter {
 public:
  explicit GroupWriter(std::shared_ptr<arrow::ipc::RecordBatchWriter> writer)
      : writer_(std::move(writer)) {}

  arrow::Status add(const std::shared_ptr<arrow::RecordBatch>& batch) {
    const std::int64_t most = std::max<std::int64_t>(1, kGroupBytes / bytes_of_row(*batch));
    for (std::int64_t first = 0; first < batch->num_rows();) {
      const std::int64_t room =
          std::max<std::int64_t>(1, std::min(kGroupRows, most) - waiting_rows_);
      const std::int64_t count = std::min(room, batch->num_rows() - first);
      waiting_.push_back(batch->Slice(first, count));
      waiting_rows_ += count;
      first += count;
      if (waiting_rows_ >= std::min(kGroupRows, most)) ARROW_RETURN_NOT_OK(flush());
    }
    return arrow::Status::OK();
  }
  arrow::Status flush() {
    if (waiting_.empty()) return arrow::Status::OK();
    ARROW_ASSIGN_OR_RAISE(const auto joined, arrow::ConcatenateRecordBatches(waiting_));
    ARROW_RETURN_NOT_OK(writer_->WriteRecordBatch(*joined));
    rows_.push_back(waiting_rows_);
    waiting_.clear();
    waiting_rows_ = 0;
    return arrow::Status::OK();
  }
  [[nodiscard]] const std::vector<std::int64_t>& rows() const { return rows_; }

 private:
  // On average over a batch.
  static std::int64_t bytes_of_row(const arrow::RecordBatch& batch) {
    const std::int64_t bytes = arrow::util::TotalBufferSize(batch);
    return std::max<std::int64_t>(1, bytes / std::max<std::int64_t>(1, batch.num_rows()));
  }

  std::shared_ptr<arrow::ipc::RecordBatchWriter> writer_;
  arrow::RecordBatchVector waiting_;
  std::int64_t waiting_rows_ = 0;
  std::vector<std::int64_t> rows_;
};

}  // namespace

arrow::Result<std::unique_ptr<File>> open_ipc(Input input) {
  ARROW_ASSIGN_OR_RAISE(const auto all, reader_of(input, {}));
  std::vector<std::int64_t> rows;
  if (all->schema()->num_fields() > 0) {
    ARROW_ASSIGN_OR_RAISE(const auto first, reader_of(input, {0}));
    for (int i = 0; i < first->num_record_batches(); ++i) {
      ARROW_ASSIGN_OR_RAISE(const auto batch, first->ReadRecordBatch(i));
      rows.push_back(batch->num_rows());
    }
  }
  return std::make_unique<IpcFile>(std::move(input), all->schema(), std::move(rows), false);
}

arrow::Result<std::unique_ptr<File>> open_ipc_stream(const Input& input) {
  ARROW_RETURN_NOT_OK(input->Seek(0));
  ARROW_ASSIGN_OR_RAISE(const auto stream, arrow::ipc::RecordBatchStreamReader::Open(input));
  return convert_to_ipc(*stream);
}

arrow::Result<std::unique_ptr<File>> convert_to_ipc(arrow::RecordBatchReader& batches) {
  ARROW_ASSIGN_OR_RAISE(const int descriptor, open_nameless());
  ARROW_ASSIGN_OR_RAISE(const auto output, arrow::io::FileOutputStream::Open(descriptor));
  ARROW_ASSIGN_OR_RAISE(const auto writer, arrow::ipc::MakeFileWriter(output, batches.schema()));
  GroupWriter groups(writer);
  while (true) {
    ARROW_ASSIGN_OR_RAISE(const auto batch, batches.Next());
    if (batch == nullptr) break;
    ARROW_RETURN_NOT_OK(groups.add(batch));
  }
  ARROW_RETURN_NOT_OK(groups.flush());
  ARROW_RETURN_NOT_OK(writer->Close());
  // Opened when it has its size; each of the two closes its own descriptor.
  ARROW_ASSIGN_OR_RAISE(Input input, arrow::io::ReadableFile::Open(::dup(descriptor)));
  ARROW_RETURN_NOT_OK(output->Close());
  return std::make_unique<IpcFile>(std::move(input), batches.schema(), groups.rows(), true);
}

}  // namespace troika::arrow_plugin
