#include <ATen/ATen.h>
#include <troika/base/file.h>
#include <troika/checkpoint/hub_index.h>
#include <troika/checkpoint/hub_tensors.h>
#include <troika/checkpoint/safetensors.h>

#include <cstddef>
#include <span>

namespace troika {

std::vector<std::string> write_hub_tensors(
    const std::filesystem::path& folder, const std::vector<TensorEntry>& tensors,
    std::uint64_t max_bytes, const std::function<at::Tensor(const TensorEntry&)>& value) {
  std::vector<std::string> names;
  const std::vector<HubFile> files = cut_into_hub_files(tensors, max_bytes);
  for (const HubFile& file : files) {
    // The libraries refuse a file that does not say so.
    SafetensorsWriter writer(folder / file.name, file.tensors, {{"format", "pt"}});
    for (const TensorEntry& entry : writer.entries()) {
      const at::Tensor values = value(entry).contiguous();
      writer.write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
    }
    writer.commit();
    names.push_back(file.name);
  }
  if (files.size() > 1) {
    write_file_atomically(folder / kHubIndexFile, format_hub_index(files));
    names.emplace_back(kHubIndexFile);
  }
  return names;
}

}  // namespace troika
