#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/checkpoint/safetensors.h>

#include <functional>

namespace troika {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), shown_path(path))) {
  for (std::size_t i = 0; i < header_.entries.size(); ++i) {
    by_name_.emplace(header_.entries[i].name, i);
  }
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.entries[found->second];
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) return *entry;
  std::vector<std::string_view> names;
  for (const TensorEntry& entry : entries()) names.push_back(entry.name);
  const auto near = nearest(name, names);
  throw DataError(shown_path(path()) + ": no tensor " + quote(name),
                  near ? "did you mean " + quote(*near) + "?" : "");
}

std::span<const std::byte> SafetensorsFile::data(const TensorEntry& entry) const {
  const auto section = file_.bytes().subspan(header_.data_begin);
  check(entry.begin <= entry.end && entry.end <= section.size(),
        "safetensors entry of another file: " + entry.name);
  return section.subspan(entry.begin, entry.bytes());
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorEntry> tensors, const Metadata& metadata)
    : entries_(lay_out_safetensors(std::move(tensors))), file_(path) {
  file_.write(format_safetensors_header(entries_, metadata));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  check(next_ < entries_.size(), "safetensors: more tensors written than announced");
  const TensorEntry& entry = entries_[next_];
  check(bytes.size() == entry.bytes(), "safetensors: wrong size for tensor " + entry.name);
  file_.write(bytes);
  ++next_;
}

void SafetensorsWriter::commit() {
  check(next_ == entries_.size(), "safetensors: fewer tensors written than announced");
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorBytes> tensors,
                       const Metadata& metadata) {
  std::vector<TensorEntry> entries;
  std::map<std::string_view, const TensorBytes*> by_name;
  for (const TensorBytes& tensor : tensors) {
    entries.push_back({.name = tensor.name, .type = tensor.type, .shape = tensor.shape});
    by_name.emplace(tensor.name, &tensor);
  }
  SafetensorsWriter writer(path, std::move(entries), metadata);
  for (const TensorEntry& entry : writer.entries()) writer.write(by_name.at(entry.name)->bytes);
  writer.commit();
}

}  // namespace troika
