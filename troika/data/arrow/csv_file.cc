// CSV and other separated text, read a block at a time by Arrow.
#include <arrow/csv/api.h>
#include <fnmatch.h>
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

std::shared_ptr<arrow::DataType> arrow_type_of(ValueType type) {
  if (type == ValueType::kText) return arrow::utf8();
  if (type == ValueType::kInteger) return arrow::int64();
  return type == ValueType::kNumber ? arrow::float64() : nullptr;
}

// A name goes before globs.
ValueType forced_type(const std::vector<ForcedType>& types, const std::string& column) {
  for (const ForcedType& each : types) {
    if (each.column == column) return each.type;
  }
  for (const ForcedType& each : types) {
    if (::fnmatch(each.column.c_str(), column.c_str(), 0) == 0) return each.type;
  }
  return ValueType::kNothing;
}

// Text that is converted. What its columns hold is guessed, and guessed again where that was wrong.
class CsvText {
 public:
  CsvText(Input input, arrow::Compression::type compression, const TextFormat& format)
      : input_(std::move(input)),
        compression_(compression),
        format_(format),
        names_(format.names) {}

  arrow::Result<std::unique_ptr<File>> convert() {
    while (true) {  // each round widens a column, which has few types, or the block
      const auto made = typed_reader();
      arrow::Result<std::unique_ptr<File>> file =
          made.ok() ? convert_to_ipc(**made) : arrow::Result<std::unique_ptr<File>>(made.status());
      if (file.ok()) return file;
      const std::string& message = file.status().message();
      const bool is_cut = message.find("straddling object") != std::string::npos;
      if (is_cut && block_bytes_ < kMostBlockBytes) {
        block_bytes_ *= 4;
      } else if (!made.ok() || !widen(message, *(*made)->schema())) {
        return file;
      }
    }
  }

 private:
  using Reader = std::shared_ptr<arrow::csv::StreamingReader>;

  arrow::Result<Reader> reader() const {
    ARROW_ASSIGN_OR_RAISE(const auto text, open_text(input_, compression_));
    auto read = arrow::csv::ReadOptions::Defaults();
    read.use_threads = false;
    read.block_size = block_bytes_;
    read.column_names = names_;
    read.autogenerate_column_names = !format_.has_header && names_.empty();
    read.skip_rows_after_names = format_.has_header && !names_.empty() ? 1 : 0;
    auto parse = arrow::csv::ParseOptions::Defaults();
    parse.delimiter = format_.delimiter;
    parse.newlines_in_values = true;
    auto convert = arrow::csv::ConvertOptions::Defaults();
    convert.strings_can_be_null = true;
    convert.column_types = types_;
    convert.decimal_point = format_.decimal_point;
    if (!format_.usual_missing_words) convert.null_values = {""};
    convert.null_values.insert(convert.null_values.end(), format_.missing_words.begin(),
                               format_.missing_words.end());
    return arrow::csv::StreamingReader::Make(arrow::io::default_io_context(), text, read, parse,
                                             convert);
  }

  // Makes a reader whose columns have names, and the types that are forced.
  arrow::Result<Reader> typed_reader() {
    ARROW_ASSIGN_OR_RAISE(Reader made, reader());
    const int columns = made->schema()->num_fields();
    const bool has_names = format_.has_header || !names_.empty();
    for (int i = 0; !has_names && i < columns; ++i) names_.push_back("c" + std::to_string(i));
    bool is_new = !has_names;
    for (int i = 0; i < columns; ++i) {
      const std::string& name =
          names_.empty() ? made->schema()->field(i)->name() : names_[static_cast<std::size_t>(i)];
      const auto type = arrow_type_of(forced_type(format_.types, name));
      is_new |= type != nullptr && types_.emplace(name, type).second;
    }
    return is_new ? reader() : made;
  }

  // Widens the column that an error names, unless its type is forced; text may become bytes.
  bool widen(const std::string& message, const arrow::Schema& schema) {
    const int column = column_of(message);
    if (column < 0 || column >= schema.num_fields()) return false;
    const arrow::Field& field = *schema.field(column);
    const ValueType forced = forced_type(format_.types, field.name());
    if (forced == ValueType::kInteger || forced == ValueType::kNumber) return false;
    const auto known = types_.find(field.name());
    const auto wider = wider_than(known == types_.end() ? *field.type() : *known->second);
    if (wider == nullptr) return false;
    types_[field.name()] = wider;
    return true;
  }

  Input input_;
  arrow::Compression::type compression_;
  const TextFormat& format_;
  std::vector<std::string> names_;
  Types types_;
  std::int32_t block_bytes_ = kBlockBytes;
};

}  // namespace

arrow::Result<std::unique_ptr<File>> open_csv(const Input& input,
                                              arrow::Compression::type compression,
                                              const TextFormat& format) {
  return CsvText(input, compression, format).convert();
}

}  // namespace troika::arrow_plugin
