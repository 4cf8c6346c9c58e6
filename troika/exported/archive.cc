#include <ATen/ATen.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/exported/archive.h>

#include <optional>

namespace troika {
namespace {

constexpr const char* kHowToSave =
    "torch.export.save(torch.export.export(network.train(), inputs), PATH) writes it";

MappedFile mapped(const std::filesystem::path& path) {
  if (std::filesystem::is_regular_file(path)) return MappedFile(path);
  throw UsageError("there is no file " + shown_path(path), kHowToSave);
}

// Returns how many elements lie from the first to the last of a tensor; nothing where that is no
// number of 64 bits, or a size or a stride is negative.
std::optional<std::int64_t> extent_of(const StoredTensor& stored) {
  std::optional<std::int64_t> last = stored.offset;
  if (stored.offset < 0 || stored.sizes.size() != stored.strides.size()) return std::nullopt;
  for (std::size_t i = 0; i < stored.sizes.size(); ++i) {
    const std::int64_t size = stored.sizes[i], stride = stored.strides[i];
    if (size < 0 || stride < 0) return std::nullopt;
    if (size == 0) return 0;
    const auto step = checked_mul(size - 1, stride);
    if (!step) return std::nullopt;
    last = checked_add(*last, *step);
    if (!last) return std::nullopt;
  }
  return checked_add(*last, 1);
}

// Returns the number of elements; nothing where that is no number of 64 bits.
std::optional<std::int64_t> count_of(const StoredTensor& stored) {
  std::optional<std::int64_t> count = 1;
  for (const std::int64_t size : stored.sizes) {
    count = checked_mul(*count, size);
    if (!count) return std::nullopt;
  }
  return count;
}

}  // namespace

std::int64_t StoredTensor::end() const {
  const auto extent = extent_of(*this);
  return extent.value_or(0) == 0 ? offset : *extent;
}

ExportArchive::ExportArchive(const std::filesystem::path& path) : file_(mapped(path)) {
  const std::string shown = shown_path(path);
  if (!is_archive(file_.bytes())) {
    throw UsageError(shown + " is no exported program: it is no archive", kHowToSave);
  }
  try {
    for (ArchiveRecord& record : read_archive_directory(file_.bytes(), shown)) {
      const std::size_t slash = record.name.find('/');
      std::string name = slash == std::string::npos ? record.name : record.name.substr(slash + 1);
      if (!records_.emplace(name, std::move(record)).second) {
        throw DataError(shown + " has two records " + quote(name, 200));
      }
    }
  } catch (const DataError& error) {
    throw UsageError(error.what(), "copy the file, or export the network again");
  }
  if (records_.contains("archive_format") && text_of(content("archive_format")) == "pt2") return;
  const bool is_script = records_.contains("constants.pkl");
  throw UsageError(shown + " is no exported program: " +
                       (is_script ? "it is TorchScript" : "torch.export.save() has not written it"),
                   is_script ? "write kind = \"torchscript\", or export the network" : kHowToSave);
}

void ExportArchive::fail(const std::string& what) const {
  throw UsageError(shown_path(path()) + " " + what, "export the network again");
}

std::vector<std::string> ExportArchive::names() const {
  std::vector<std::string> names;
  for (const auto& [name, record] : records_) names.push_back(name);
  return names;
}

std::span<const std::byte> ExportArchive::content(const std::string& name) const {
  const auto found = records_.find(name);
  if (found == records_.end()) fail("has no record " + quote(name, 200));
  try {
    return content_of(file_.bytes(), found->second, shown_path(path()));
  } catch (const DataError& error) {
    throw UsageError(error.what(), "copy the file, or export the network again");
  }
}

at::Tensor ExportArchive::tensor(const StoredTensor& stored) const {
  const std::span<const std::byte> bytes = content("data/" + stored.record);
  const auto extent = extent_of(stored), count = count_of(stored);
  const auto size = static_cast<std::int64_t>(c10::elementSize(stored.type));
  const auto held = static_cast<std::int64_t>(bytes.size()) / size;
  // A stride of 0 makes many elements of one: no more are taken than the file has bytes.
  if (!extent || !count || *extent > held || *count > static_cast<std::int64_t>(file_.size())) {
    fail("holds less of " + quote(stored.record, 200) + " than its sizes say");
  }
  if (*count == 0) return at::empty(stored.sizes, stored.type);
  std::vector<std::byte> aligned;
  const std::byte* first = bytes.data() + stored.offset * size;
  if (reinterpret_cast<std::uintptr_t>(first) % static_cast<std::uintptr_t>(size) != 0) {
    aligned.assign(bytes.begin() + stored.offset * size, bytes.end());
    first = aligned.data();
  }
  return at::from_blob(const_cast<std::byte*>(first), stored.sizes,  // NOLINT: only read
                       stored.strides, at::TensorOptions(stored.type))
      .clone(at::MemoryFormat::Contiguous);
}

}  // namespace troika
