// The layout of a safetensors file, apart from any file or tensor: a little-endian 64-bit header
// length, a JSON header that names every tensor with its type, shape and place, and the data
// without holes. docs/safetensors.md lists every rule that is checked. Nothing here needs LibTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Floating point first.
enum class DataType : std::uint8_t {
  kF64,
  kF32,
  kBF16,
  kF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
};
inline constexpr std::array kDataTypes{
    DataType::kF64, DataType::kF32, DataType::kBF16, DataType::kF16, DataType::kI64,
    DataType::kI32, DataType::kI16, DataType::kI8,   DataType::kU8,  DataType::kBool};

// Return the name in the header ("BF16"), and the type of a name; nullopt for an unknown type.
[[nodiscard]] std::string_view name_of(DataType type);
[[nodiscard]] std::optional<DataType> data_type_of(std::string_view name);
// Returns the bytes of one element.
[[nodiscard]] std::uint64_t size_of(DataType type);
[[nodiscard]] constexpr bool is_floating_point(DataType type) {
  return type <= DataType::kF16;
}

// One tensor: row-major, its bytes at [begin, end) of the data section.
struct TensorEntry {
  std::string name;
  DataType type = DataType::kF32;
  std::vector<std::int64_t> shape = {};  // empty: a scalar
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

// Free text beside the tensors, sorted by key.
using Metadata = std::map<std::string, std::string, std::less<>>;

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  // in the order of their data
  Metadata metadata;
  std::uint64_t data_begin = 0;  // of the data section, from the start of the file
};

// Returns the bytes of a tensor, or nullopt when a dimension is negative or the product does not
// fit 64 bits.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(DataType type,
                                                        std::span<const std::int64_t> shape);

// Reads and checks the header of a whole file. Every entry of the result lies inside `file`, has
// the size that its type and shape ask for, and overlaps no other; together they fill the data
// section. Throws DataError, one line that names `source` and the tensor.
[[nodiscard]] SafetensorsHeader parse_safetensors(std::span<const std::byte> file,
                                                  const std::string& source);

// Returns the entries in the order in which tensors are written, and fills in begin and end. The
// order is by type (64-bit types first, so that every tensor is aligned to its element) and then by
// name, as in the reference implementation. The file's bytes hence do not depend on the order in
// which tensors were given. Throws UsageError naming the tensor: a name twice or "__metadata__", an
// impossible shape.
[[nodiscard]] std::vector<TensorEntry> lay_out_safetensors(std::vector<TensorEntry> entries);

// Returns the bytes before the data section, for entries that lay_out_safetensors() returned:
// length and header, padded with spaces to a multiple of 8. Throws UsageError: a name or metadata
// that is not UTF-8, a header beyond the limit.
[[nodiscard]] std::string format_safetensors_header(std::span<const TensorEntry> entries,
                                                    const Metadata& metadata);

}  // namespace troika
