// JSON Lines, read a block of whole lines at a time by Arrow.
#include <arrow/json/reader.h>
#include <troika/data/arrow/files.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace troika::arrow_plugin {
namespace {

using Type = std::shared_ptr<arrow::DataType>;
using Lines = std::shared_ptr<arrow::Buffer>;

// Text that is parsed at a time, cut behind a line; a line that is longer needs more.
constexpr std::int64_t kJsonBlockBytes = 4 << 20, kMostJsonBlockBytes = 1 << 30;

// Makes {} of each row that is null, which means the same. Arrow reads through a null pointer where
// all rows of a block are null.
void replace_null_rows(std::string& lines) {
  constexpr std::string_view kNull = "null";
  if (lines.find(kNull) == std::string::npos) return;
  bool in_string = false;
  std::int64_t depth = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const char c = lines[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (depth == 0 && lines.compare(i, kNull.size(), kNull) == 0) {
      lines.replace(i, kNull.size(), "{}  ");
      i += kNull.size() - 1;
    }
  }
}

// Reads blocks of whole lines, which have more than white space in them.
class LineBlocks {
 public:
  static arrow::Result<LineBlocks> open(const Input& input, arrow::Compression::type compression) {
    LineBlocks blocks;
    ARROW_ASSIGN_OR_RAISE(blocks.text_, open_text(input, compression));
    return blocks;
  }

  // Returns null behind the last.
  arrow::Result<Lines> next() {
    while (true) {
      ARROW_ASSIGN_OR_RAISE(std::string lines, read_lines());
      if (lines.empty()) return nullptr;
      if (lines.find_first_not_of(" \t\r\n") == std::string::npos) continue;
      replace_null_rows(lines);
      return arrow::Buffer::FromString(std::move(lines));
    }
  }

 private:
  arrow::Result<std::string> read_lines() {
    std::string lines = std::move(rest_);
    rest_.clear();
    std::size_t searched = 0;
    while (!ended_) {
      ARROW_ASSIGN_OR_RAISE(const Lines more, text_->Read(kJsonBlockBytes));
      ended_ = more->size() == 0;
      lines.append(std::string_view(*more));
      drop_byte_order_mark(lines);
      const std::size_t end = std::string_view(lines).substr(searched).rfind('\n');
      if (end != std::string::npos) {
        rest_ = lines.substr(searched + end + 1);
        lines.resize(searched + end + 1);
        return lines;
      }
      searched = lines.size();
      if (std::ssize(lines) > kMostJsonBlockBytes) {
        return arrow::Status::Invalid("a line is longer than 1 GiB");
      }
    }
    return lines;
  }

  void drop_byte_order_mark(std::string& lines) {
    if (std::exchange(begun_, true) || !lines.starts_with("\xEF\xBB\xBF")) return;
    lines.erase(0, 3);
  }

  std::shared_ptr<arrow::io::InputStream> text_;
  std::string rest_;
  bool begun_ = false, ended_ = false;
};

// The row of "JSON parse error: ... in row 5", and the text without it.
struct RowError {
  std::string what;
  std::optional<std::int64_t> row;
};

RowError row_error(const std::string& message) {
  constexpr std::string_view kRow = " in row ";
  const std::size_t at = message.rfind(kRow);
  if (at == std::string::npos) return {message, {}};
  std::int64_t row = 0;
  const char* const first = message.data() + at + kRow.size();
  const auto [end, error] = std::from_chars(first, message.data() + message.size(), row);
  if (error != std::errc()) return {message, {}};
  return {message.substr(0, at), row};
}

// What "Column(/a/b) changed from number to string" says. The path of a row itself is empty.
struct ChangedKind {
  std::string path, before, now;
};

std::optional<ChangedKind> changed_kind(const std::string& what) {
  static const std::regex kWords("Column\\((.*)\\) changed from (\\w+) to (\\w+)");
  std::smatch parts;
  if (!std::regex_search(what, parts, kWords)) return std::nullopt;
  std::string path = parts[1].str();
  if (path.starts_with('/')) path.erase(0, 1);
  std::ranges::replace(path, '/', '.');
  return ChangedKind{path, parts[2].str(), parts[3].str()};
}

std::string with_article(const std::string& kind) {
  return (std::string_view("aeiou").find(kind.front()) != std::string_view::npos ? "an " : "a ") +
         kind;
}

arrow::Status told(const arrow::Status& status, std::int64_t rows_before) {
  const RowError error = row_error(status.message());
  if (const auto changed = changed_kind(error.what)) {
    const std::string row = "row " + std::to_string(rows_before + error.row.value_or(0));
    if (!changed->path.empty()) {
      return arrow::Status::Invalid(row, ": the column '", changed->path, "' is ",
                                    with_article(changed->now), ", and ",
                                    with_article(changed->before), " in a row before");
    }
    const bool is_array = changed->now == "array";
    return arrow::Status::Invalid(row, " is ", with_article(changed->now),
                                  ": JSON Lines have an object a line",
                                  is_array ? ", as `jq -c '.[]'` writes them" : "");
  }
  const std::string where = error.row
                                ? "row " + std::to_string(rows_before + *error.row)
                                : "behind row " + std::to_string(rows_before) + ", counted from 0";
  return arrow::Status::Invalid(where, ": ", error.what);
}

arrow::Result<std::shared_ptr<arrow::RecordBatch>> parse(
    const Lines& lines, const std::shared_ptr<arrow::Schema>& schema, std::int64_t rows_before) {
  auto options = arrow::json::ParseOptions::Defaults();
  options.explicit_schema = schema;
  options.unexpected_field_behavior = schema == nullptr
                                          ? arrow::json::UnexpectedFieldBehavior::InferType
                                          : arrow::json::UnexpectedFieldBehavior::Ignore;
  auto batch = arrow::json::ParseOne(options, lines);
  if (!batch.ok()) return told(batch.status(), rows_before);
  return batch;
}

arrow::Result<Type> merged(const Type& a, const Type& b, const std::string& name);

arrow::Result<Type> merged_structs(const Type& a, const Type& b, const std::string& name) {
  arrow::FieldVector fields = a->fields();
  for (const auto& field : b->fields()) {
    const auto found = std::ranges::find(fields, field->name(), &arrow::Field::name);
    if (found == fields.end()) {
      fields.push_back(field);
      continue;
    }
    ARROW_ASSIGN_OR_RAISE(const Type type,
                          merged((*found)->type(), field->type(), name + "." + field->name()));
    *found = (*found)->WithType(type);
  }
  return arrow::struct_(fields);
}

// The type of a column that two blocks have guessed.
arrow::Result<Type> merged(const Type& a, const Type& b, const std::string& name) {
  using Id = arrow::Type;
  const auto are = [&](Id::type one, Id::type other) {
    return (a->id() == one && b->id() == other) || (a->id() == other && b->id() == one);
  };
  if (a->Equals(*b) || b->id() == Id::NA) return a;
  if (a->id() == Id::NA) return b;
  if (are(Id::INT64, Id::DOUBLE)) return arrow::float64();
  if (are(Id::STRUCT, Id::STRUCT)) return merged_structs(a, b, name);
  if (are(Id::LIST, Id::LIST)) {
    ARROW_ASSIGN_OR_RAISE(const Type element,
                          merged(a->field(0)->type(), b->field(0)->type(), name));
    return arrow::list(element);
  }
  return arrow::Status::Invalid("the column '", name, "' is ", a->ToString(), " in some rows and ",
                                b->ToString(), " in others");
}

// A string stays one, whether or not it looks like a date, as another file of the table may have
// other strings.
Type with_strings(const Type& type) {
  switch (type->id()) {
    case arrow::Type::TIMESTAMP:
      return arrow::utf8();
    case arrow::Type::LIST:
      return arrow::list(with_strings(type->field(0)->type()));
    case arrow::Type::STRUCT: {
      arrow::FieldVector fields = type->fields();
      for (auto& field : fields) field = field->WithType(with_strings(field->type()));
      return arrow::struct_(fields);
    }
    default:
      return type;
  }
}

// Reads all of the text for the types of its columns.
arrow::Result<std::shared_ptr<arrow::Schema>> guess_schema(LineBlocks blocks) {
  Type all = arrow::struct_({});
  std::int64_t rows = 0;
  while (true) {
    ARROW_ASSIGN_OR_RAISE(const Lines lines, blocks.next());
    if (lines == nullptr) break;
    ARROW_ASSIGN_OR_RAISE(const auto batch, parse(lines, nullptr, rows));
    rows += batch->num_rows();
    const Type own = with_strings(arrow::struct_(batch->schema()->fields()));
    ARROW_ASSIGN_OR_RAISE(all, merged_structs(all, own, ""));
  }
  arrow::FieldVector fields = all->fields();
  return arrow::schema(std::move(fields));
}

// JSON's numbers have no bound: those of columns whose digits are wanted are read as decimals.
std::shared_ptr<arrow::Schema> with_decimals(const arrow::Schema& schema,
                                             std::span<const std::string> as_digits) {
  constexpr std::int32_t kMostDigits = 38;
  arrow::FieldVector fields = schema.fields();
  for (auto& field : fields) {
    const bool is_wanted = std::ranges::count(as_digits, field->name()) > 0;
    if (is_wanted && field->type()->id() == arrow::Type::DOUBLE) {
      field = field->WithType(arrow::decimal128(kMostDigits, 0));
    }
  }
  return arrow::schema(std::move(fields));
}

class JsonBatches final : public arrow::RecordBatchReader {
 public:
  JsonBatches(LineBlocks blocks, std::shared_ptr<arrow::Schema> schema)
      : blocks_(std::move(blocks)), schema_(std::move(schema)) {}

  [[nodiscard]] std::shared_ptr<arrow::Schema> schema() const override { return schema_; }
  arrow::Status ReadNext(std::shared_ptr<arrow::RecordBatch>* batch) override {
    batch->reset();
    ARROW_ASSIGN_OR_RAISE(const Lines lines, blocks_.next());
    if (lines == nullptr) return arrow::Status::OK();
    ARROW_ASSIGN_OR_RAISE(*batch, parse(lines, schema_, rows_));
    rows_ += (*batch)->num_rows();
    return arrow::Status::OK();
  }

 private:
  LineBlocks blocks_;
  std::shared_ptr<arrow::Schema> schema_;
  std::int64_t rows_ = 0;
};

}  // namespace

arrow::Result<std::unique_ptr<File>> open_json(const Input& input,
                                               arrow::Compression::type compression,
                                               std::span<const std::string> as_digits) {
  ARROW_ASSIGN_OR_RAISE(LineBlocks first, LineBlocks::open(input, compression));
  ARROW_ASSIGN_OR_RAISE(auto schema, guess_schema(std::move(first)));
  schema = with_decimals(*schema, as_digits);
  ARROW_ASSIGN_OR_RAISE(LineBlocks again, LineBlocks::open(input, compression));
  JsonBatches batches(std::move(again), std::move(schema));
  return convert_to_ipc(batches);
}

}  // namespace troika::arrow_plugin
