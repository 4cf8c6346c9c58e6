// Internal: the formats of files that the plug-in reads.
#pragma once

#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <arrow/util/type_fwd.h>
#include <troika/data/arrow/plugin.h>

#include <memory>
#include <string>

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

// Writes batches to a file without a name, in the folder for temporary files, which is gone when it
// is closed, and opens it.
[[nodiscard]] arrow::Result<std::unique_ptr<File>> convert_to_ipc(
    arrow::RecordBatchReader& batches);

[[nodiscard]] arrow::Result<std::unique_ptr<Writer>> create_parquet(std::span<const Column> columns,
                                                                    TakeBytes take);

// What files of all formats have in common: columns from an Arrow schema.
class SchemaFile : public File {
 public:
  explicit SchemaFile(std::shared_ptr<arrow::Schema> schema);

  [[nodiscard]] std::int64_t columns() const final { return schema_->num_fields(); }
  [[nodiscard]] Column column(std::int64_t index) const final;

 protected:
  [[nodiscard]] const arrow::Schema& schema() const { return *schema_; }

 private:
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<std::string> type_names_;
};

}  // namespace troika::arrow_plugin
