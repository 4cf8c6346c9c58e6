#include <arrow/extension_type.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <troika/data/arrow/convert.h>
#include <troika/data/arrow/files.h>

#include <utility>
#include <vector>

namespace troika::arrow_plugin {
namespace {

// Rows that are decoded at a time: their values stay in the processor's cache.
constexpr std::int64_t kBatchRows = 16384;

// The columns of Parquet that hold a field: one, but for nested types.
int leaves_of(const arrow::DataType& type) {
  if (type.id() == arrow::Type::EXTENSION) {
    return leaves_of(*static_cast<const arrow::ExtensionType&>(type).storage_type());
  }
  if (type.num_fields() == 0) return 1;
  int leaves = 0;
  for (const auto& field : type.fields()) leaves += leaves_of(*field->type());
  return leaves;
}

class ParquetFile final : public SchemaFile {
 public:
  ParquetFile(std::shared_ptr<arrow::Schema> schema,
              std::unique_ptr<parquet::arrow::FileReader> reader)
      : SchemaFile(std::move(schema)), reader_(std::move(reader)) {
    for (const auto& field : this->schema().fields()) {
      first_leaf_.push_back(first_leaf_.empty() ? 0 : next_leaf_);
      next_leaf_ += leaves_of(*field->type());
    }
  }

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
    std::vector<int> leaves;
    for (const std::int64_t column : columns) {
      const int first = first_leaf_[static_cast<std::size_t>(column)];
      const int count = leaves_of(*schema().field(static_cast<int>(column))->type());
      for (int leaf = first; leaf < first + count; ++leaf) leaves.push_back(leaf);
    }
    ARROW_ASSIGN_OR_RAISE(const auto batches,
                          reader_->GetRecordBatchReader({static_cast<int>(group)}, leaves));
    std::vector<int> places;  // of our columns in a batch, which has them in the file's order
    for (const std::int64_t column : columns) {
      const std::string& name = schema().field(static_cast<int>(column))->name();
      places.push_back(batches->schema()->GetFieldIndex(name));
    }
    Converter converter;
    std::int64_t first_row = 0;
    while (true) {
      ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
      if (batch == nullptr) break;
      if (first_row + batch->num_rows() > rows(group)) {
        return arrow::Status::IOError("it has more rows than its ", rows(group));
      }
      for (std::size_t i = 0; i < columns.size(); ++i) {
        ARROW_ASSIGN_OR_RAISE(Values values, converter.convert(*batch->column(places[i])));
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
  std::vector<int> first_leaf_;
  int next_leaf_ = 0;
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
