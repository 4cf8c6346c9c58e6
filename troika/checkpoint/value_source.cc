#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/stat.h>
#include <troika/base/file_identity.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/tensors.h>
#include <troika/checkpoint/value_source.h>
#include <troika/storage/object_store.h>

namespace troika {
namespace {

// A sample is so many bytes at a time, at so many places.
constexpr std::size_t kSampleBytes = 4096, kSamples = 16;

std::string title_of(const std::string& tensor) {
  return "tensor " + quote(tensor, 200);
}

// Adds bytes from places that are spread evenly, the first at the beginning, the last at the end.
void add_sample(ContentHash& hash, std::span<const std::byte> bytes) {
  if (bytes.size() <= kSamples * kSampleBytes) {
    hash.update(bytes);
    return;
  }
  const std::size_t last = bytes.size() - kSampleBytes;
  for (std::size_t i = 0; i < kSamples; ++i) {
    hash.update(bytes.subspan(last / (kSamples - 1) * i, kSampleBytes));
  }
  hash.update(bytes.subspan(last));
}

enum class Content { kWhole, kSample };

std::uint64_t digest_of(const TensorEntry& entry, std::span<const std::byte> bytes,
                        Content content) {
  ContentHash hash;
  hash.update(name_of(entry.type));
  for (const std::int64_t size : entry.shape) hash.update(" " + std::to_string(size));
  hash.update(" at " + std::to_string(entry.begin) + "\n");
  if (content == Content::kWhole) {
    hash.update(bytes);
  } else {
    add_sample(hash, bytes);
  }
  return hash.digest();
}

// Returns the values of an entry where they lie in the mapped file, so that a large tensor is not
// copied twice; a copy where it is not aligned there, or its bytes have to be checked. Read only.
at::Tensor values_in(const SafetensorsFile& file, const TensorEntry& entry) {
  const std::span<const std::byte> bytes = file.data(entry);
  const at::ScalarType type = scalar_type_of(entry.type);
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  if (type == at::kBool || bytes.empty() || address % c10::elementSize(type) != 0) {
    return load_tensor(file, entry);
  }
  return at::from_blob(const_cast<std::byte*>(bytes.data()), entry.shape, type);
}

}  // namespace

ValueSource::ValueSource(const std::filesystem::path& path) : path_(path) {
  if (!is_checkpoint(path)) {
    file_.emplace(path);
    for (const TensorEntry& entry : file_->entries()) {
      tensors_[entry.name] = {entry.type, entry.shape};
    }
    return;
  }
  checkpoint_.emplace(path);
  for (const auto& [name, tensor] : checkpoint_->manifest().tensors) {
    if (name.starts_with("optimizer.") || name.starts_with("replica.")) continue;
    tensors_[name] = tensor;
  }
}

void ValueSource::read(const std::string& name, const StateTensor& place) {
  if (file_) {
    read_whole(file_->at(name), place);
    return;
  }
  StateDict places;
  places.add(name, place.shard, place.tensor);
  checkpoint_->read(places);
}

void ValueSource::read_whole(const TensorEntry& entry, const StateTensor& place) const {
  const at::Tensor whole = values_in(*file_, entry);
  const at::Tensor here =
      place.tensor.is_cpu() ? place.tensor : at::empty(place.tensor.sizes(), whole.scalar_type());
  copy_from_whole(place.shard, whole, here);
  at::Tensor target = place.tensor;
  if (!target.is_cpu()) target.copy_(here);
}

std::vector<SourcePart> ValueSource::parts(const std::set<std::string>& used,
                                           std::uint64_t most_whole) const {
  std::vector<SourcePart> parts;
  if (checkpoint_) {
    const Manifest& manifest = checkpoint_->manifest();
    parts.push_back({"its step", static_cast<std::uint64_t>(manifest.step)});
    for (const ManifestShard& each : manifest.shards) {
      parts.push_back({"file " + quote(each.file), content_hash(each.sha256)});
    }
    return parts;
  }
  std::vector<const TensorEntry*> entries;
  for (const TensorEntry& entry : file_->entries()) {
    if (used.contains(entry.name)) entries.push_back(&entry);
  }
  const Content content = is_sampled(used, most_whole) ? Content::kSample : Content::kWhole;
  parts.resize(entries.size());
  at::parallel_for(0, std::ssize(entries), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const TensorEntry& entry = *entries[static_cast<std::size_t>(i)];
      parts[static_cast<std::size_t>(i)] = {title_of(entry.name),
                                            digest_of(entry, file_->data(entry), content)};
    }
  });
  return parts;
}

bool ValueSource::is_sampled(const std::set<std::string>& used, std::uint64_t most_whole) const {
  if (checkpoint_) return false;
  std::uint64_t bytes = 0;
  for (const TensorEntry& entry : file_->entries()) {
    if (used.contains(entry.name)) bytes += entry.bytes();
  }
  return bytes > most_whole;
}

std::vector<SourcePart> ValueSource::tensor_parts(const std::set<std::string>& used) {
  if (!checkpoint_) return {};
  std::uint64_t bytes = 0;
  for (const std::string& name : used) {
    const ManifestTensor& tensor = tensors_.at(name);
    bytes += tensor_bytes(tensor.type, tensor.shape).value_or(kWholeBytes + 1);
  }
  if (bytes > kWholeBytes) return {};
  std::vector<SourcePart> parts;
  for (const std::string& name : used) {
    const ManifestTensor& tensor = tensors_.at(name);
    const at::Tensor whole = at::empty(tensor.shape, scalar_type_of(tensor.type));
    read(name, {name, ShardDescriptor::whole(tensor.shape, true), whole.view(-1)});
    parts.push_back(tensor_part(name, whole));
  }
  return parts;
}

std::vector<std::size_t> ValueSource::files_of(const std::string& name) const {
  return checkpoint_ ? checkpoint_->files_of(name) : std::vector<std::size_t>();
}

void ValueSource::verify(std::size_t file, DigestCache& cache) {
  if (!checkpoint_) return;
  const ManifestShard& shard = checkpoint_->manifest().shards[file];
  const std::filesystem::path path = checkpoint_->path() / shard.file;
  struct stat before {};
  const bool is_local = !is_remote(path.native()) && ::stat(path.c_str(), &before) == 0;
  if (is_local && cache.find_sha256(path, before) == shard.sha256) return;
  checkpoint_->verify_file(file);
  struct stat after {};
  if (!is_local || ::stat(path.c_str(), &after) != 0) return;
  const bool is_unchanged = FileIdentity(after).version() == FileIdentity(before).version();
  if (is_unchanged) cache.add_sha256(path, before, shard.sha256);
}

}  // namespace troika
