// Writes Parquet files row group by row group.
#include <arrow/io/interfaces.h>
#include <arrow/record_batch.h>
#include <parquet/arrow/writer.h>
#include <parquet/exception.h>
#include <troika/data/arrow/files.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troika::arrow_plugin {
namespace {

// Rows of a row group, which is in memory until it is complete.
constexpr std::int64_t kGroupRows = 65536;

// Passes bytes on. The file behind it appears when all are there, so nothing is closed here.
class Passed final : public arrow::io::OutputStream {
 public:
  explicit Passed(TakeBytes take) : take_(std::move(take)) {}

  arrow::Status Write(const void* data, std::int64_t bytes) override {
    if (!take_({static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)})) {
      return arrow::Status::IOError("the file cannot be written");
    }
    position_ += bytes;
    return arrow::Status::OK();
  }
  using OutputStream::Write;
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  [[nodiscard]] arrow::Result<std::int64_t> Tell() const override { return position_; }
  [[nodiscard]] bool closed() const override { return closed_; }

 private:
  TakeBytes take_;
  std::int64_t position_ = 0;
  bool closed_ = false;
};

std::shared_ptr<arrow::DataType> type_of(ValueType type) {
  if (type == ValueType::kText) return arrow::utf8();
  return type == ValueType::kInteger ? arrow::int64() : arrow::float64();
}

arrow::Result<std::shared_ptr<arrow::Array>> array_of(const Values& values) {
  if (values.type == ValueType::kText) {
    arrow::StringBuilder text;
    ARROW_RETURN_NOT_OK(text.Reserve(values.rows));
    for (std::size_t i = 0; i < static_cast<std::size_t>(values.rows); ++i) {
      const auto begin = static_cast<std::size_t>(values.offsets[i]);
      const auto end = static_cast<std::size_t>(values.offsets[i + 1]);
      const bool there = values.there.empty() || values.there[i] != 0;
      ARROW_RETURN_NOT_OK(there ? text.Append(values.text.substr(begin, end - begin))
                                : text.AppendNull());
    }
    return text.Finish();
  }
  const std::uint8_t* const there = values.there.empty() ? nullptr : values.there.data();
  if (values.type == ValueType::kInteger) {
    arrow::Int64Builder integers;
    ARROW_RETURN_NOT_OK(integers.AppendValues(values.integers.data(), values.rows, there));
    return integers.Finish();
  }
  arrow::DoubleBuilder numbers;
  ARROW_RETURN_NOT_OK(numbers.AppendValues(values.numbers.data(), values.rows, there));
  return numbers.Finish();
}

class ParquetWriter final : public Writer {
 public:
  ParquetWriter(std::shared_ptr<arrow::Schema> schema,
                std::unique_ptr<parquet::arrow::FileWriter> writer)
      : schema_(std::move(schema)), writer_(std::move(writer)) {}

  [[nodiscard]] bool write(std::span<const Values> columns, const TakeText& error) override {
    return told([&] { return write_rows(columns); }, error);
  }
  [[nodiscard]] bool close(const TakeText& error) override {
    return told([&] { return writer_->Close(); }, error);
  }

 private:
  arrow::Status write_rows(std::span<const Values> columns) {
    arrow::ArrayVector arrays;
    for (const Values& each : columns) {
      ARROW_ASSIGN_OR_RAISE(arrays.emplace_back(), array_of(each));
    }
    return writer_->WriteRecordBatch(
        *arrow::RecordBatch::Make(schema_, columns.front().rows, std::move(arrays)));
  }

  template <class Act>
  static bool told(const Act& act, const TakeText& error) {
    try {
      const arrow::Status status = act();
      if (!status.ok()) error(status.message());
      return status.ok();
    } catch (const parquet::ParquetException& exception) {
      error(exception.what());
      return false;
    }
  }

  std::shared_ptr<arrow::Schema> schema_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
};

}  // namespace

arrow::Result<std::unique_ptr<Writer>> create_parquet(std::span<const Column> columns,
                                                      TakeBytes take) {
  try {
    arrow::FieldVector fields;
    for (const Column& each : columns) {
      fields.push_back(arrow::field(std::string(each.name), type_of(each.type), each.nullable));
    }
    const auto schema = arrow::schema(std::move(fields));
    const auto properties =
        parquet::WriterProperties::Builder().max_row_group_length(kGroupRows)->build();
    ARROW_ASSIGN_OR_RAISE(auto writer, parquet::arrow::FileWriter::Open(
                                           *schema, arrow::default_memory_pool(),
                                           std::make_shared<Passed>(std::move(take)), properties));
    return std::make_unique<ParquetWriter>(schema, std::move(writer));
  } catch (const parquet::ParquetException& exception) {
    return arrow::Status::Invalid(exception.what());
  }
}

}  // namespace troika::arrow_plugin
