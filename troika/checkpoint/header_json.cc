#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/checkpoint/header_json.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace troika::detail {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::size_t kMaxDims = 64;

// Follows the text event by event and accepts only
//   {"__metadata__": {text: text...}, name: {"dtype": text, "shape": [n...],
//    "data_offsets": [n, n]}...}
// No tree is built, so hostile nesting costs nothing.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& source) : source_(source) {}

  [[nodiscard]] SafetensorsHeader take() { return std::move(header_); }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(std::int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    unexpected("a number that is not whole or too large");
  }
  bool binary(Json::binary_t&) override { unexpected("binary data"); }
  bool number_unsigned(std::uint64_t value) override;
  bool string(std::string& value) override;
  bool start_object(std::size_t) override;
  bool key(std::string& value) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    // 8 bytes of length stand before the header; positions count from one.
    throw DataError(source_ + ": the header is not valid JSON near byte " +
                    std::to_string(position + 7));
  }

 private:
  enum class Section { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };

  // What the cursor is in, for messages.
  [[nodiscard]] std::string here() const;
  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(source_ + ": " + here() + problem);
  }
  [[noreturn]] void unexpected(const std::string& what) const;
  void finish_tensor();

  const std::string& source_;
  SafetensorsHeader header_;
  Section section_ = Section::kStart;
  std::set<std::string> names_;
  std::string field_;             // the last key inside a tensor or the metadata
  std::set<std::string> fields_;  // those of the tensor so far
  TensorEntry entry_;
  std::vector<std::uint64_t> offsets_;
};

std::string HeaderReader::here() const {
  if (section_ == Section::kStart) return "the header: ";
  if (section_ == Section::kMetadata) return "__metadata__: ";
  return "tensor " + quote(entry_.name) + ": ";
}

void HeaderReader::unexpected(const std::string& what) const {
  switch (section_) {
    case Section::kStart:
    case Section::kTop:
      fail("expected an object, found " + what);
    case Section::kMetadata:
      fail("key " + quote(field_) + ": expected a string, found " + what);
    case Section::kTensor:
      fail(quote(field_) + ": unexpected " + what);
    case Section::kShape:
    case Section::kOffsets:
      fail(quote(field_) + ": expected whole numbers, found " + what);
  }
  throw InternalError("internal error: safetensors header place");
}

bool HeaderReader::number_unsigned(std::uint64_t value) {
  if (section_ == Section::kOffsets) {
    if (offsets_.size() == 2) fail("'data_offsets' must hold two numbers");
    offsets_.push_back(value);
  } else if (section_ == Section::kShape) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail("'shape': dimension " + std::to_string(value) + " is too large");
    }
    if (entry_.shape.size() == kMaxDims) {
      fail("'shape' has more than " + std::to_string(kMaxDims) + " dimensions");
    }
    entry_.shape.push_back(static_cast<std::int64_t>(value));
  } else {
    unexpected("a number");
  }
  return true;
}

bool HeaderReader::string(std::string& value) {
  if (section_ == Section::kMetadata) {
    if (!header_.metadata.emplace(field_, value).second) fail("key " + quote(field_) + " twice");
  } else if (section_ == Section::kTensor && field_ == "dtype") {
    const auto type = data_type_of(value);
    if (!type) {
      std::vector<std::string_view> known;
      known.reserve(kDataTypes.size());
      for (const DataType each : kDataTypes) known.push_back(name_of(each));
      fail("unknown dtype " + quote(value) + " (known: " + join(known, ", ") + ")");
    }
    entry_.type = *type;
  } else {
    unexpected("a string");
  }
  return true;
}

bool HeaderReader::start_object(std::size_t) {
  if (section_ == Section::kStart) {
    section_ = Section::kTop;
  } else if (section_ == Section::kTop) {
    section_ = entry_.name == kMetadataKey ? Section::kMetadata : Section::kTensor;
  } else {
    unexpected("an object");
  }
  return true;
}

bool HeaderReader::key(std::string& value) {
  if (section_ == Section::kTop) {
    entry_ = TensorEntry{.name = value};
    fields_.clear();
    offsets_.clear();
    if (!names_.insert(value).second) fail("named twice");
    return true;
  }
  field_ = value;
  if (section_ == Section::kMetadata) return true;
  if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
    fail("unknown field " + quote(field_));
  }
  if (!fields_.insert(field_).second) fail("field " + quote(field_) + " twice");
  return true;
}

bool HeaderReader::end_object() {
  if (section_ == Section::kTensor) finish_tensor();
  // The end of the whole header leaves kTop too, but nothing follows: the parser sees to it.
  section_ = Section::kTop;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (section_ != Section::kTensor || field_ == "dtype") unexpected("an array");
  section_ = field_ == "shape" ? Section::kShape : Section::kOffsets;
  return true;
}

bool HeaderReader::end_array() {
  section_ = Section::kTensor;
  return true;
}

void HeaderReader::finish_tensor() {
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!fields_.contains(field)) fail("field '" + std::string(field) + "' is missing");
  }
  if (offsets_.size() != 2) fail("'data_offsets' must hold two numbers");
  entry_.begin = offsets_[0];
  entry_.end = offsets_[1];
  header_.entries.push_back(entry_);
}

// A JSON string literal. Throws UsageError when `text` is not UTF-8.
std::string literal(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::type_error&) {
    throw UsageError("a safetensors file cannot hold " + quote(text) + ": it is not UTF-8");
  }
}

std::string tensor_json(const TensorEntry& entry) {
  std::vector<std::string> dims;
  dims.reserve(entry.shape.size());
  for (const std::int64_t dim : entry.shape) dims.push_back(std::to_string(dim));
  return literal(entry.name) + R"(:{"dtype":")" + std::string(name_of(entry.type)) +
         R"(","shape":[)" + join(dims, ",") + R"(],"data_offsets":[)" +
         std::to_string(entry.begin) + "," + std::to_string(entry.end) + "]}";
}

}  // namespace

SafetensorsHeader parse_header_json(std::string_view json, const std::string& source) {
  // The parser would take a zero byte for the end of the text, and skip a byte-order mark.
  const std::size_t zero = json.find('\0');
  if (zero != std::string_view::npos) {
    throw DataError(source + ": the header is not valid JSON near byte " +
                    std::to_string(zero + 8));
  }
  if (!json.starts_with('{')) {
    throw DataError(source + ": not a safetensors file: its header does not begin with '{'");
  }
  HeaderReader reader(source);
  Json::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

std::string format_header_json(std::span<const TensorEntry> entries, const Metadata& metadata) {
  std::vector<std::string> parts;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) pairs.push_back(literal(key) + ":" + literal(value));
    parts.push_back(literal(std::string(kMetadataKey)) + ":{" + join(pairs, ",") + "}");
  }
  std::set<std::string_view> names{kMetadataKey};
  for (const TensorEntry& entry : entries) {
    if (!names.insert(entry.name).second) {
      throw UsageError("tensor " + quote(entry.name) +
                       (entry.name == kMetadataKey ? ": this name is reserved" : ": named twice"));
    }
    if (entry.shape.size() > kMaxDims) {
      throw UsageError("tensor " + quote(entry.name) + ": more than " + std::to_string(kMaxDims) +
                       " dimensions");
    }
    parts.push_back(tensor_json(entry));
  }
  return "{" + join(parts, ",") + "}";
}

}  // namespace troika::detail
