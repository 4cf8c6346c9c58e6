// A file that torch.export.save() has written: a ZIP archive with the program as JSON, and a record
// of bytes for each tensor. The pickled sample inputs in it are never read.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/archive_directory.h>
#include <troika/base/file.h>

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// A tensor in a record. Its numbers of elements, not of bytes.
struct StoredTensor {
  std::string record;  // "weights/weight_0"
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;
  bool requires_grad = false;

  // Returns where it ends in its record, which holds all of it: behind its last element.
  [[nodiscard]] std::int64_t end() const;
  auto operator<=>(const StoredTensor&) const = default;
};

// Const access is thread safe.
class ExportArchive {
 public:
  // Maps the file and reads its directory. Throws UsageError naming the file where it is not there,
  // or no archive of torch.export.
  explicit ExportArchive(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  // Returns the records' names, without the folder that all of them are in, ascending.
  [[nodiscard]] std::vector<std::string> names() const;
  // Returns a view of a record's bytes. Throws UsageError where there is no such record.
  [[nodiscard]] std::span<const std::byte> content(const std::string& name) const;
  // Returns a copy of the tensor, of memory of its own. Throws UsageError where its record does not
  // hold all of it.
  [[nodiscard]] at::Tensor tensor(const StoredTensor& stored) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;

  MappedFile file_;
  std::map<std::string, ArchiveRecord> records_;
};

}  // namespace troika
