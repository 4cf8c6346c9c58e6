#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/checkpoint/reshard.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/state_reader.h>
#include <troika/checkpoint/tensor_source.h>
#include <troika/checkpoint/tensors.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace troika {
namespace {

namespace fs = std::filesystem;

// The elements of a tensor that one of the files has.
ShardDescriptor share_of(const ManifestTensor& tensor, int file, int files) {
  ShardDescriptor share = ShardDescriptor::whole(tensor.shape, true);
  const std::int64_t all = share.count;
  share.begin = all * file / files;
  share.count = share.owned = all * (file + 1) / files - share.begin;
  return share;
}

at::Tensor read_share(StateReader& from, const std::string& name, const ShardDescriptor& share) {
  const DataType type = from.manifest().tensors.at(name).type;
  const at::Tensor values = at::empty({share.count}, scalar_type_of(type));
  StateDict state;
  state.add(name, share, values);
  from.read(state);
  return values;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

ManifestShard write_file(StateReader& from, const fs::path& path, int file, int files,
                         const std::optional<EncryptionKey>& key) {
  std::map<std::string, ShardDescriptor> shares;
  std::vector<TensorEntry> entries;
  ManifestShard shard;
  shard.file = path.filename().string();
  for (const auto& [name, tensor] : from.manifest().tensors) {
    const ShardDescriptor share = share_of(tensor, file, files);
    if (share.count == 0) continue;
    entries.push_back({.name = name, .type = tensor.type, .shape = {share.count}});
    shard.parts.push_back(
        {name, share.slice.dim, share.slice.begin, share.slice.end, share.begin, share.count});
    shares.emplace(name, share);
  }
  Sha256 hash;
  SafetensorsWriter writer(path, std::move(entries), {}, {.hash = &hash, .key = key});
  for (const TensorEntry& entry : writer.entries()) {
    writer.write(bytes_of(read_share(from, entry.name, shares.at(entry.name))));
  }
  writer.commit();
  shard.bytes = writer.bytes();
  shard.sha256 = hash.digest();
  return shard;
}

// Tells the files from those that a run writes to the same folder.
std::string attempt_of(const Manifest& manifest, int files) {
  constexpr std::size_t kDigits = 8;
  return Sha256()
      .update(format_manifest(manifest))
      .update(std::to_string(files))
      .digest()
      .substr(0, kDigits);
}

void check_same(const CheckpointFolder& from, const CheckpointFolder& to, std::int64_t step) {
  const auto before = open_checkpoint_tensors(from, step),
             after = open_checkpoint_tensors(to, step);
  for (const TensorEntry& entry : before->entries()) {
    const at::Tensor expected = before->load(entry), found = after->load(after->at(entry.name));
    const bool is_same =
        expected.nbytes() == found.nbytes() &&
        std::memcmp(expected.const_data_ptr(), found.const_data_ptr(), expected.nbytes()) == 0;
    check(is_same, "a tensor that has changed as it was written again: " + entry.name);
  }
}

}  // namespace

Manifest reshard_checkpoint(const CheckpointFolder& from, std::int64_t step,
                            const CheckpointFolder& to, int files) {
  StateReader reader(from, step);
  reader.verify();
  Manifest manifest = reader.manifest();
  // What is encrypted stays so, with its key.
  const std::optional<EncryptionKey> key = key_of(manifest, from.step_folder(step).string());
  const std::string attempt = attempt_of(manifest, files);
  manifest.shards.clear();
  const CheckpointFolder keyed(to.path(), key);
  make_folders(to.step_folder(step));
  for (int file = 0; file < files; ++file) {
    const fs::path path = to.step_folder(step) / shard_file_name(file, files, attempt);
    manifest.shards.push_back(write_file(reader, path, file, files, key));
  }
  keyed.commit(manifest);
  keyed.remove_unnamed(manifest);
  manifest = to.read(step);
  verify_shards(to.step_folder(step), manifest);
  check_same(from, to, step);
  return manifest;
}

}  // namespace troika
