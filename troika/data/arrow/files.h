// Internal: the formats of files that the plug-in reads.
#pragma once

#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <arrow/util/type_fwd.h>
#include <troika/data/arrow/plugin.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troika::arrow_plugin {

using Input = std::shared_ptr<arrow::io::RandomAccessFile>;

[[nodiscard]] arrow::Result<std::unique_ptr<File>> open_parquet(Input input);
// Opens Arrow's file format, whose batches are the groups. Its stream format is converted to it.
[[nodiscard]] arrow::Result<std::unique_ptr<File>> open_ipc(Input input);
[[nodiscard]] arrow::Result<std::unique_ptr<File>> open_ipc_stream(const Input& input);
// Converts text to Arrow's file format: it can be read only from its beginning. The delimiter is
// not 0.
[[nodiscard]] arrow::Result<std::unique_ptr<File>> open_csv(const Input& input,
                                                            arrow::Compression::type compression,
                                                            const TextFormat& format);

// Converts JSON Lines, an object a line, likewise. A column has the type that all of its values
// have; a row without it has no value there. A column of `as_digits` is read as decimal numbers.
[[nodiscard]] arrow::Result<std::unique_ptr<File>> open_json(
    const Input& input, arrow::Compression::type compression,
    std::span<const std::string> as_digits);

// Reads a file of text from its beginning, and decompresses it. Leaves the file open.
[[nodiscard]] arrow::Result<std::shared_ptr<arrow::io::InputStream>> open_text(
    const Input& input, arrow::Compression::type compression);

// Writes batches to a file without a name, in the folder for temporary files, which is gone when it
// is closed, and opens it.
[[nodiscard]] arrow::Result<std::unique_ptr<File>> convert_to_ipc(
    arrow::RecordBatchReader& batches);

[[nodiscard]] arrow::Result<std::unique_ptr<Writer>> create_parquet(std::span<const Column> columns,
                                                                    TakeBytes take);

// A column of a file: a field of the schema, or a field inside of structs.
struct FieldPath {
  std::string name;                 // "s.a" inside of a struct
  int field = 0;                    // of the schema
  std::vector<std::string> inside;  // the fields to go through from there
  std::shared_ptr<arrow::DataType> type;
  int first_leaf = 0;  // the first of its `leaves` among the columns of Parquet
  int leaves = 1;
  bool as_digits = false;  // read as text, see TextFormat::as_digits
};

// The common part of files of all formats: columns from an Arrow schema.
class SchemaFile : public File {
 public:
  explicit SchemaFile(std::shared_ptr<arrow::Schema> schema);

  [[nodiscard]] std::int64_t columns() const final { return std::ssize(paths_); }
  [[nodiscard]] Column column(std::int64_t index) const final;
  // Reads these columns as the text of their digits, where they are of uint64 or of decimals.
  void show_digits(std::span<const std::string> columns);

 protected:
  [[nodiscard]] const arrow::Schema& schema() const { return *schema_; }
  [[nodiscard]] const FieldPath& path_of(std::int64_t column) const {
    return paths_[static_cast<std::size_t>(column)];
  }
  // Finds a column in a batch, which may lack other fields.
  [[nodiscard]] arrow::Result<std::shared_ptr<arrow::Array>> find(const arrow::RecordBatch& batch,
                                                                  std::int64_t column) const;

 private:
  void add_inside(const FieldPath& of);

  std::shared_ptr<arrow::Schema> schema_;
  std::vector<FieldPath> paths_;
  std::vector<std::string> type_names_;
};

}  // namespace troika::arrow_plugin
