#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/checkpoint/header_json.h>
#include <troika/checkpoint/safetensors_header.h>

#include <algorithm>
#include <array>

namespace troika {
namespace {

// The reference implementation's limit; a larger length is a file of another kind.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kHeaderAlignment = 8;

struct TypeRow {
  DataType type;
  std::string_view name;
  std::uint64_t size;
  int place;  // in the file: the reference writes larger places first
};
// Indexed by DataType.
constexpr std::array<TypeRow, kDataTypes.size()> kTypes{{
    {DataType::kF64, "F64", 8, 8},
    {DataType::kF32, "F32", 4, 7},
    {DataType::kBF16, "BF16", 2, 5},
    {DataType::kF16, "F16", 2, 4},
    {DataType::kI64, "I64", 8, 9},
    {DataType::kI32, "I32", 4, 6},
    {DataType::kI16, "I16", 2, 3},
    {DataType::kI8, "I8", 1, 2},
    {DataType::kU8, "U8", 1, 1},
    {DataType::kBool, "BOOL", 1, 0},
}};
const TypeRow& row_of(DataType type) {
  return kTypes.at(static_cast<std::size_t>(type));
}

std::string show(std::span<const std::int64_t> shape) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> dims;
  for (const std::int64_t dim : shape.first(std::min(shape.size(), kShown))) {
    dims.push_back(std::to_string(dim));
  }
  if (shape.size() > kShown) dims.emplace_back("...");
  return "[" + join(dims, ", ") + "]";
}

[[noreturn]] void fail(const std::string& source, const TensorEntry& entry,
                       const std::string& problem) {
  throw DataError(source + ": tensor " + quote(entry.name) + ": " + problem);
}

void check_size(const TensorEntry& entry, const std::string& source, std::uint64_t data_bytes) {
  const auto place = "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
  if (entry.begin > entry.end) fail(source, entry, "data_offsets " + place + " run backwards");
  if (entry.end > data_bytes) {
    fail(source, entry,
         "data_offsets " + place + " reach beyond the " + std::to_string(data_bytes) +
             " bytes of data (truncated file?)");
  }
  const auto needed = tensor_bytes(entry.type, entry.shape);
  const std::string kind = std::string(name_of(entry.type)) + " " + show(entry.shape);
  if (!needed) fail(source, entry, kind + " has more bytes than 64 bits can count");
  if (*needed != entry.bytes()) {
    fail(source, entry,
         kind + " needs " + std::to_string(*needed) + " bytes, data_offsets give " +
             std::to_string(entry.bytes()));
  }
}

// Sorts the entries by place and checks that they fill [0, data_bytes) exactly.
void check_places(std::vector<TensorEntry>& entries, const std::string& source,
                  std::uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin < covered) {
      fail(source, entry,
           "its data overlap another tensor's at byte " + std::to_string(entry.begin));
    }
    if (entry.begin > covered) {
      fail(source, entry,
           "bytes " + std::to_string(covered) + " to " + std::to_string(entry.begin) +
               " before it belong to no tensor");
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw DataError(source + ": the last " + std::to_string(data_bytes - covered) +
                    " bytes belong to no tensor");
  }
}

// What else files of models are, by how they begin.
struct OtherFormat {
  std::string_view begin, is, hint;
};
constexpr std::string_view kSaveSafetensors =
    "in Python, where it is a state_dict(): safetensors.torch.save_file(torch.load(FILE, "
    "map_location=\"cpu\"), \"model.safetensors\")";
constexpr std::array<OtherFormat, 6> kOtherFormats = {
    {{"PK\x03\x04", "what torch.save() or torch.jit.save() writes", kSaveSafetensors},
     {"\x80\x02", "what torch.save() of early releases writes", kSaveSafetensors},
     {"\x89HDF", "HDF5", "save the tensors with safetensors.numpy.save_file()"},
     {"GGUF", "GGUF", "take the safetensors files that it was made of"},
     {"version ", "a pointer of Git LFS, and not the file itself", "fetch it: git lfs pull"},
     {"<", "a page of the web, and not the file itself", "download it again"}}};

[[noreturn]] void refuse_header(const std::string& source, std::uint64_t length) {
  std::array<char, sizeof(length)> bytes = {};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  const std::string_view begin(bytes.data(), bytes.size());
  const auto other = std::ranges::find_if(
      kOtherFormats, [&](const OtherFormat& each) { return begin.starts_with(each.begin); });
  if (other != kOtherFormats.end()) {
    throw DataError(source + ": not a safetensors file: it is " + std::string(other->is),
                    std::string(other->hint));
  }
  throw DataError(source + ": not a safetensors file: a header of " + std::to_string(length) +
                  " bytes is beyond the limit of " + std::to_string(kMaxHeaderBytes));
}

std::string_view take_header(ByteReader& reader) {
  const std::string& source = reader.source();
  if (reader.remaining() < sizeof(std::uint64_t)) {
    throw DataError(source + ": not a safetensors file: " +
                    (reader.remaining() == 0
                         ? "it is empty"
                         : "it has only " + std::to_string(reader.remaining()) + " bytes"));
  }
  const auto length = reader.read<std::uint64_t>();
  if (length > kMaxHeaderBytes) refuse_header(source, length);
  if (length > reader.remaining()) {
    throw DataError(source + ": truncated: the header needs " + std::to_string(length) +
                    " bytes, " + std::to_string(reader.remaining()) + " are left");
  }
  return text_of(reader.take(length));
}

}  // namespace

std::string_view name_of(DataType type) {
  return row_of(type).name;
}
std::uint64_t size_of(DataType type) {
  return row_of(type).size;
}

std::optional<DataType> data_type_of(std::string_view name) {
  const auto row = std::find_if(kTypes.begin(), kTypes.end(),
                                [&](const TypeRow& candidate) { return candidate.name == name; });
  if (row == kTypes.end()) return std::nullopt;
  return row->type;
}

std::optional<std::uint64_t> tensor_bytes(DataType type, std::span<const std::int64_t> shape) {
  std::optional<std::uint64_t> bytes = size_of(type);
  for (const std::int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    bytes = checked_mul(*bytes, static_cast<std::uint64_t>(dim));
    if (!bytes) return std::nullopt;
  }
  return bytes;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& source) {
  ByteReader reader(file, source);
  SafetensorsHeader header = detail::parse_header_json(take_header(reader), source);
  header.data_begin = reader.offset();
  const std::uint64_t data_bytes = reader.remaining();
  for (const TensorEntry& entry : header.entries) check_size(entry, source, data_bytes);
  check_places(header.entries, source, data_bytes);
  return header;
}

std::vector<TensorEntry> lay_out_safetensors(std::vector<TensorEntry> entries) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    const int place_a = row_of(a.type).place, place_b = row_of(b.type).place;
    return place_a != place_b ? place_a > place_b : a.name < b.name;
  });
  std::uint64_t end = 0;
  for (TensorEntry& entry : entries) {
    const auto bytes = tensor_bytes(entry.type, entry.shape);
    const auto after = bytes ? checked_add(end, *bytes) : std::nullopt;
    if (!after) throw UsageError("tensor " + quote(entry.name) + ": impossible shape");
    entry.begin = end;
    entry.end = end = *after;
  }
  return entries;
}

std::string format_safetensors_header(std::span<const TensorEntry> entries,
                                      const Metadata& metadata) {
  std::string json = detail::format_header_json(entries, metadata);
  const std::size_t over = json.size() % kHeaderAlignment;
  if (over != 0) json.append(kHeaderAlignment - over, ' ');
  if (json.size() > kMaxHeaderBytes) {
    throw UsageError("the safetensors header would need " + format_bytes(json.size()) +
                         ", more than its limit of " + format_bytes(kMaxHeaderBytes),
                     "save fewer tensors in one file");
  }
  const auto size = to_little_endian<std::uint64_t>(json.size());
  return std::string(text_of(size)) + json;
}

}  // namespace troika
