// Parquet files, whose row groups are those of the table.
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <troika/data/arrow/convert.h>
#include <troika/data/arrow/files.h>

#include <set>
#include <utility>
#include <vector>

namespace troika::arrow_plugin {
namespace {

// Rows that are decoded at a time: their values stay in the processor's cache.
constexpr std::int64_t kBatchRows = 16384;

class ParquetFile final : public SchemaFile {
 public:
  ParquetFile(std::shared_ptr<arrow::Schema> schema,
              std::unique_ptr<parquet::arrow::FileReader> reader)
      : SchemaFile(std::move(schema)), reader_(std::move(reader)) {}

  [[nodiscard]] std::int64_t groups() const override { return reader_->num_row_groups(); }
  [[nodiscard]] std::int64_t rows(std::int64_t group) const override {
    return reader_->parquet_reader()->metadata()->RowGroup(static_cast<int>(group))->num_rows();
  }

  [[nodiscard]] bool read(std::int64_t group, std::span<const std::int64_t> columns,
                          const TakeValues& take, const TakeText& error) const override {
    try {
      const arrow::Status status = read_batches(group, columns, take);
      if (!status.ok()) error(status.message());
      return status.ok();
    } catch (const parquet::ParquetException& exception) {
      error(exception.what());
      return false;
    }
  }

 private:
  arrow::Status read_batches(std::int64_t group, std::span<const std::int64_t> columns,
                             const TakeValues& take) const {
    std::set<int> leaves;  // each once: two columns may be of one struct
    for (const std::int64_t column : columns) {
      const FieldPath& which = path_of(column);
      for (int i = 0; i < which.leaves; ++i) leaves.insert(which.first_leaf + i);
    }
    ARROW_ASSIGN_OR_RAISE(const auto batches,
                          reader_->GetRecordBatchReader({static_cast<int>(group)},
                                                        std::vector(leaves.begin(), leaves.end())));
    Converter converter;
    std::int64_t first_row = 0;
    while (true) {
      ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
      if (batch == nullptr) break;
      if (first_row + batch->num_rows() > rows(group)) {
        return arrow::Status::IOError("it has more rows than its ", rows(group));
      }
      for (std::size_t i = 0; i < columns.size(); ++i) {
        ARROW_ASSIGN_OR_RAISE(const auto found, find(*batch, columns[i]));
        ARROW_ASSIGN_OR_RAISE(Values values, converter.convert(*found));
        values.first_row = first_row;
        take(i, values);
      }
      first_row += batch->num_rows();
    }
    if (first_row != rows(group)) {
      return arrow::Status::IOError("it has ", first_row, " rows of ", rows(group));
    }
    return arrow::Status::OK();
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
};

}  // namespace

arrow::Result<std::unique_ptr<File>> open_parquet(Input input) {
  try {
    parquet::ArrowReaderProperties properties(/*use_threads=*/false);
    properties.set_batch_size(kBatchRows);
    properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(std::move(input)));
    ARROW_ASSIGN_OR_RAISE(auto reader, builder.properties(properties)->Build());
    std::shared_ptr<arrow::Schema> schema;
    ARROW_RETURN_NOT_OK(reader->GetSchema(&schema));
    return std::make_unique<ParquetFile>(std::move(schema), std::move(reader));
  } catch (const parquet::ParquetException& exception) {
    return arrow::Status::Invalid(exception.what());
  }
}

}  // namespace troika::arrow_plugin
