#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <troika/base/file.h>
#include <troika/exported/archive.h>
#include <troika/exported/program.h>
#include <troika/exported/save.h>

#include <map>
#include <string>

namespace troika {
namespace {

// What the writer of archives adds by itself.
bool is_of_writer(const std::string& record) {
  return record.starts_with(".data/");
}

// The value as its record has it: in its own type, and with the elements where they were.
at::Tensor as_stored(const at::Tensor& value, const StoredTensor& stored) {
  std::int64_t extent = stored.offset + 1;
  for (std::size_t i = 0; i < stored.sizes.size(); ++i) {
    extent += (stored.sizes[i] - 1) * stored.strides[i];
  }
  at::Tensor storage = at::zeros({value.numel() == 0 ? 0 : extent}, stored.type);
  if (value.numel() > 0) {
    storage.as_strided(stored.sizes, stored.strides, stored.offset).copy_(value);
  }
  return storage;
}

// The values of records, by the records' names.
std::map<std::string, at::Tensor> records_of(const Program& program,
                                             const std::vector<NamedTensor>& values) {
  std::map<std::string, at::Tensor> records;
  for (const NamedTensor& value : values) {
    for (const ProgramInput& each : program.inputs) {
      if (each.name != value.name || each.stored.record.empty()) continue;
      records["data/" + each.stored.record] = as_stored(value.tensor, each.stored);
    }
  }
  return records;
}

}  // namespace

void save_exported(const std::filesystem::path& from, const std::filesystem::path& to,
                   const std::vector<NamedTensor>& values) {
  const at::NoGradGuard no_grad;
  const ExportArchive archive(from);
  const auto records = records_of(read_program(archive), values);
  AtomicFile file(to);
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    file.write({static_cast<const std::byte*>(data), size});
    return size;
  });
  for (const std::string& name : archive.names()) {
    if (is_of_writer(name)) continue;
    const auto found = records.find(name);
    if (found != records.end()) {
      writer.writeRecord(name, found->second.const_data_ptr(), found->second.nbytes());
    } else {
      const auto bytes = archive.content(name);
      writer.writeRecord(name, bytes.data(), bytes.size());
    }
  }
  writer.writeEndOfFile();
  file.commit();
}

}  // namespace troika
