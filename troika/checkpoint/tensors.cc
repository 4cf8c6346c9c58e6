#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/checkpoint/tensors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>

namespace troika {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");

struct TypePair {
  DataType type;
  at::ScalarType scalar;
};
constexpr std::array<TypePair, kDataTypes.size()> kPairs{{
    {DataType::kF64, at::kDouble},
    {DataType::kF32, at::kFloat},
    {DataType::kBF16, at::kBFloat16},
    {DataType::kF16, at::kHalf},
    {DataType::kI64, at::kLong},
    {DataType::kI32, at::kInt},
    {DataType::kI16, at::kShort},
    {DataType::kI8, at::kChar},
    {DataType::kU8, at::kByte},
    {DataType::kBool, at::kBool},
}};

TensorEntry entry_of(const NamedTensor& named) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError("tensor " + quote(named.name) + " cannot be saved: " + why);
  };
  const at::Tensor& tensor = named.tensor;
  if (!tensor.defined()) refuse("it is undefined");
  if (tensor.layout() != at::kStrided || tensor.is_meta()) refuse("it has no dense values");
  const auto type = data_type_of(tensor.scalar_type());
  if (!type) refuse(std::string("its type is ") + c10::toString(tensor.scalar_type()));
  return {.name = named.name, .type = *type, .shape = tensor.sizes().vec()};
}

std::span<const std::byte> bytes_of_dense(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

std::optional<DataType> data_type_of(at::ScalarType type) {
  const auto* const pair = std::ranges::find(kPairs, type, &TypePair::scalar);
  if (pair == kPairs.end()) return std::nullopt;
  return pair->type;
}

at::ScalarType scalar_type_of(DataType type) {
  return kPairs.at(static_cast<std::size_t>(type)).scalar;
}

void save_tensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                  const Metadata& metadata, const std::optional<EncryptionKey>& key) {
  std::vector<TensorEntry> entries;
  std::map<std::string_view, const at::Tensor*> by_name;
  for (const NamedTensor& named : tensors) {
    entries.push_back(entry_of(named));
    by_name.emplace(named.name, &named.tensor);
  }
  SafetensorsWriter writer(path, std::move(entries), metadata, {.key = key});
  for (const TensorEntry& entry : writer.entries()) {
    const at::Tensor dense = by_name.at(entry.name)->detach().cpu().resolve_neg().contiguous();
    writer.write(bytes_of_dense(dense));
  }
  writer.commit();
}

at::Tensor load_tensor(const SafetensorsFile& file, const TensorEntry& entry) {
  const auto bytes = file.data(entry);
  // Any other byte is undefined behaviour once it is read as a bool.
  if (entry.type == DataType::kBool &&
      std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
    throw DataError(shown_path(file.path()) + ": tensor " + quote(entry.name) +
                    ": a BOOL is neither 0 nor 1");
  }
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type_of(entry.type)));
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<NamedTensor> load_tensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::vector<NamedTensor> tensors;
  for (const TensorEntry& entry : file.entries()) {
    tensors.push_back({entry.name, load_tensor(file, entry)});
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  return tensors;
}

}  // namespace troika
