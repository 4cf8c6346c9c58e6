#include <arrow/csv/api.h>
#include <troika/data/arrow/files.h>

#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace troika::arrow_plugin {
namespace {

// Text that is read at a time; what its columns hold is guessed from the first. A row that is
// longer needs more.
constexpr std::int32_t kBlockBytes = 4 << 20, kMostBlockBytes = 1 << 30;

using Types = std::unordered_map<std::string, std::shared_ptr<arrow::DataType>>;

arrow::Result<std::shared_ptr<arrow::csv::StreamingReader>> reader_of(
    const Input& input, arrow::Compression::type compression, char delimiter, const Types& types,
    std::int32_t block_bytes) {
  ARROW_ASSIGN_OR_RAISE(const auto text, open_text(input, compression));
  auto read = arrow::csv::ReadOptions::Defaults();
  read.use_threads = false;
  read.block_size = block_bytes;
  auto parse = arrow::csv::ParseOptions::Defaults();
  parse.delimiter = delimiter;
  parse.newlines_in_values = true;
  auto convert = arrow::csv::ConvertOptions::Defaults();
  convert.strings_can_be_null = true;
  convert.column_types = types;
  return arrow::csv::StreamingReader::Make(arrow::io::default_io_context(), text, read, parse,
                                           convert);
}

// A wider type for a column whose first block had misled: whole numbers, numbers, text.
std::shared_ptr<arrow::DataType> wider_than(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::NA:
      return arrow::int64();
    case arrow::Type::INT64:
      return arrow::float64();
    case arrow::Type::STRING:
      return arrow::binary();  // bytes that are no UTF-8
    case arrow::Type::BINARY:
      return nullptr;
    default:
      return arrow::utf8();
  }
}

// The column of "In CSV column #2: CSV conversion error to int64: ..."; -1 in other messages. These
// quote values of any length.
int column_of(std::string_view message) {
  constexpr std::string_view kNumbered = "CSV column #";
  const std::size_t at = message.find(kNumbered);
  if (at == std::string_view::npos) return -1;
  const std::string_view rest = message.substr(at + kNumbered.size());
  if (rest.find(" CSV conversion error") == std::string_view::npos) return -1;
  int column = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), column);
  return error == std::errc() && rest.substr(end - rest.data()).starts_with(":") ? column : -1;
}

// Widens the column that an error names.
bool widen(const std::string& message, const arrow::Schema& schema, Types& types) {
  const int column = column_of(message);
  if (column < 0 || column >= schema.num_fields()) return false;
  const arrow::Field& field = *schema.field(column);
  const auto known = types.find(field.name());
  const auto wider = wider_than(known == types.end() ? *field.type() : *known->second);
  if (wider == nullptr) return false;
  types[field.name()] = wider;
  return true;
}

}  // namespace

arrow::Result<std::unique_ptr<File>> open_csv(const Input& input,
                                              arrow::Compression::type compression,
                                              char delimiter) {
  Types types;
  std::int32_t block_bytes = kBlockBytes;
  while (true) {  // each round widens a column, which has few types, or the block
    const auto made = reader_of(input, compression, delimiter, types, block_bytes);
    arrow::Result<std::unique_ptr<File>> file =
        made.ok() ? convert_to_ipc(**made) : arrow::Result<std::unique_ptr<File>>(made.status());
    if (file.ok()) return file;
    const std::string& message = file.status().message();
    const bool is_cut = message.find("straddling object") != std::string::npos;
    if (is_cut && block_bytes < kMostBlockBytes) {
      block_bytes *= 4;
    } else if (!made.ok() || !widen(message, *(*made)->schema(), types)) {
      return file;
    }
  }
}

}  // namespace troika::arrow_plugin
