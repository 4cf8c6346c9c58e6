#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/checkpoint/hub_index.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/state_reader.h>
#include <troika/checkpoint/tensor_source.h>
#include <troika/checkpoint/tensors.h>

#include <algorithm>
#include <map>
#include <utility>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 28;

std::vector<TensorEntry> entries_of(const SafetensorsFile& file) {
  return {file.entries().begin(), file.entries().end()};
}

class FileTensors final : public TensorSource {
 public:
  explicit FileTensors(SafetensorsFile file)
      : TensorSource(file.path(), entries_of(file)), file_(std::move(file)) {}

  [[nodiscard]] at::Tensor load(const TensorEntry& entry) override {
    return load_tensor(file_, file_.at(entry.name));
  }

 private:
  SafetensorsFile file_;
};

using FilesByName = std::map<std::string, SafetensorsFile>;

// Throws where a tensor is not in the file that the index names.
std::vector<TensorEntry> entries_of(const FilesByName& files,
                                    const std::map<std::string, std::string>& index) {
  std::vector<TensorEntry> entries;
  for (const auto& [tensor, file] : index) entries.push_back(files.at(file).at(tensor));
  return entries;
}

class IndexedTensors final : public TensorSource {
 public:
  IndexedTensors(const fs::path& folder, std::map<std::string, std::string> index,
                 FilesByName files)
      : TensorSource(folder, entries_of(files, index)),
        index_(std::move(index)),
        files_(std::move(files)) {}

  [[nodiscard]] at::Tensor load(const TensorEntry& entry) override {
    const SafetensorsFile& file = files_.at(index_.at(entry.name));
    return load_tensor(file, file.at(entry.name));
  }

 private:
  std::map<std::string, std::string> index_;  // file by tensor
  FilesByName files_;
};

std::unique_ptr<TensorSource> open_indexed(const fs::path& folder) {
  const fs::path file = folder / kHubIndexFile;
  auto index = parse_hub_index(read_file(file, kMaxIndexBytes), shown_path(file));
  FilesByName files;
  for (const auto& [tensor, name] : index) files.try_emplace(name, folder / name);
  return std::make_unique<IndexedTensors>(folder, std::move(index), std::move(files));
}

std::vector<TensorEntry> entries_of(const Manifest& manifest) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : manifest.tensors) {
    entries.push_back({.name = name, .type = tensor.type, .shape = tensor.shape});
  }
  return entries;
}

class CheckpointTensors final : public TensorSource {
 public:
  CheckpointTensors(const fs::path& folder, StateReader reader)
      : TensorSource(folder, entries_of(reader.manifest())), reader_(std::move(reader)) {}

  [[nodiscard]] at::Tensor load(const TensorEntry& entry) override {
    const at::Tensor whole = at::empty(entry.shape, scalar_type_of(entry.type));
    StateDict state;
    state.add(entry.name, ShardDescriptor::whole(entry.shape, false), whole.view({-1}));
    reader_.read(state);
    return whole;
  }

 private:
  StateReader reader_;
};

}  // namespace

TensorSource::TensorSource(fs::path path, std::vector<TensorEntry> entries)
    : path_(std::move(path)), entries_(std::move(entries)) {
  std::ranges::sort(entries_, {}, &TensorEntry::name);
}

const TensorEntry* TensorSource::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(entries_, name, {}, &TensorEntry::name);
  return found == entries_.end() || found->name != name ? nullptr : &*found;
}

const TensorEntry& TensorSource::at(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) return *entry;
  std::vector<std::string_view> names;
  for (const TensorEntry& entry : entries_) names.push_back(entry.name);
  const auto near = nearest(name, names);
  throw DataError(shown_place(path_) + " has no tensor " + quote(name),
                  near ? "did you mean " + quote(*near) + "?" : "");
}

std::unique_ptr<TensorSource> open_tensor_file(const fs::path& file) {
  return std::make_unique<FileTensors>(SafetensorsFile(file));
}

std::unique_ptr<TensorSource> open_hub_tensors(const fs::path& folder) {
  if (fs::exists(folder / kHubModelFile)) return open_tensor_file(folder / kHubModelFile);
  if (fs::exists(folder / kHubIndexFile)) return open_indexed(folder);
  throw DataError(shown_path(folder) + " has neither " + kHubModelFile + " nor " + kHubIndexFile,
                  "files that can execute, as *.bin do, are not read: save the model as "
                  "safetensors, with save_pretrained()");
}

std::unique_ptr<TensorSource> open_checkpoint_tensors(const CheckpointFolder& folder,
                                                      std::int64_t step) {
  StateReader reader(folder, step);
  reader.verify();
  return std::make_unique<CheckpointTensors>(folder.step_folder(step), std::move(reader));
}

std::unique_ptr<TensorSource> open_step_tensors(const fs::path& step_folder) {
  if (is_remote(step_folder.native())) {
    StateReader reader(step_folder);
    reader.verify();
    return std::make_unique<CheckpointTensors>(step_folder, std::move(reader));
  }
  const fs::path whole = fs::weakly_canonical(step_folder);
  const CheckpointFolder folder(whole.parent_path());
  for (const std::int64_t step : folder.steps()) {
    if (folder.step_folder(step) == whole) return open_checkpoint_tensors(folder, step);
  }
  throw DataError(shown_path(step_folder) + " is no folder of a checkpoint",
                  "those are called step-00000100, and have a manifest.json");
}

}  // namespace troika
