#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/exported/archive.h>
#include <troika/exported/program.h>
#include <troika/exported/save.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace troika {
namespace {

// What the writer of archives adds by itself.
bool is_of_writer(const std::string& record) {
  return record.starts_with(".data/");
}

// The bytes of records in which values stand, by the records' names. A record is a storage, which
// several tensors may be in.
std::map<std::string, std::vector<std::byte>> records_of(const ExportArchive& archive,
                                                         const std::vector<NamedTensor>& values) {
  std::map<std::string, std::vector<std::byte>> records;
  const Program program = read_program(archive);
  for (const NamedTensor& value : values) {
    for (const ProgramInput& each : program.inputs) {
      const StoredTensor& stored = each.stored;
      if (each.name != value.name || stored.record.empty() || value.tensor.numel() == 0) continue;
      if (value.tensor.sizes() != at::IntArrayRef(stored.sizes)) {
        throw UsageError(shown_path(archive.path()) + ": " + quote(each.name, 200) +
                             " has another shape than what was trained",
                         "the file is another one than when the run began");
      }
      (void)archive.tensor(stored);  // all of it is there
      std::vector<std::byte>& bytes = records["data/" + stored.record];
      if (bytes.empty()) {
        const auto content = archive.content("data/" + stored.record);
        bytes.assign(content.begin(), content.end());
      }
      const auto count = static_cast<std::int64_t>(bytes.size() / c10::elementSize(stored.type));
      at::from_blob(bytes.data(), {count}, at::TensorOptions(stored.type))
          .as_strided(stored.sizes, stored.strides, stored.offset)
          .copy_(value.tensor);
    }
  }
  return records;
}

}  // namespace

void save_exported(const std::filesystem::path& from, const std::filesystem::path& to,
                   const std::vector<NamedTensor>& values) {
  const at::NoGradGuard no_grad;
  const ExportArchive archive(from);
  const auto records = records_of(archive, values);
  AtomicFile file(to);
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    file.write({static_cast<const std::byte*>(data), size});
    return size;
  });
  for (const std::string& name : archive.names()) {
    if (is_of_writer(name)) continue;
    const auto found = records.find(name);
    if (found != records.end()) {
      writer.writeRecord(name, found->second.data(), found->second.size());
    } else {
      const auto bytes = archive.content(name);
      writer.writeRecord(name, bytes.data(), bytes.size());
    }
  }
  writer.writeEndOfFile();
  file.commit();
}

}  // namespace troika
