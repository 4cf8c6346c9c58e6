#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iomanip>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";

std::string padded(std::int64_t number, int digits) {
  std::ostringstream out;
  out << std::setw(digits) << std::setfill('0') << number;
  return out.str();
}

// Nothing where there is no such folder.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    found.push_back(entries->path());
  }
  if (error) throw DataError("cannot read " + shown_path(folder) + ": " + error.message());
  return found;
}

// Who may not write to the folder around it has not made it.
void sync_name_of(const fs::path& folder) {
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  if (::access(parent.c_str(), R_OK | W_OK) == 0) sync_folder(parent);
}

void remove_path(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_storage_error("remove", path, error.value());
}

}  // namespace

std::string step_name(std::int64_t step) {
  return std::string(kStepPrefix) + padded(step, 8);
}

std::optional<std::int64_t> step_of_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const char* const begin = name.data() + kStepPrefix.size();
  const char* const end = name.data() + name.size();
  std::int64_t step = 0;
  const auto [rest, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || rest != end || begin == end || step < 0) return std::nullopt;
  return step;
}

std::string shard_file_name(int rank, int ranks, const std::string& attempt) {
  return padded(rank, 5) + "-of-" + padded(ranks, 5) + "." + attempt + ".safetensors";
}

CheckpointFolder::CheckpointFolder(fs::path path, std::optional<EncryptionKey> key)
    : path_(std::move(path)), key_(std::move(key)) {
  if (is_remote(path_.native())) store_.emplace(path_.native());
}

fs::path CheckpointFolder::step_folder(std::int64_t step) const {
  return place_below(path_, step_name(step));
}

std::vector<CheckpointFolder::Entry> CheckpointFolder::entries() const {
  if (store_) return stored_entries();
  std::vector<Entry> found;
  for (const fs::path& entry : entries_of(path_)) {
    const std::string name = entry.filename().string();
    if (const auto step = step_of_name(name)) found.push_back({*step, name, is_checkpoint(entry)});
  }
  return found;
}

// A store has no folders, only names.
std::vector<CheckpointFolder::Entry> CheckpointFolder::stored_entries() const {
  std::map<std::string, Entry> found;
  for (const ObjectStore::File& file : store_->list()) {
    const std::size_t slash = std::min(file.name.find('/'), file.name.size());
    const std::string name = file.name.substr(0, slash);
    const auto step = step_of_name(name);
    if (!step || slash == file.name.size()) continue;
    Entry& entry = found.try_emplace(name, Entry{*step, name, false}).first->second;
    if (file.name.substr(slash + 1) == kManifestFile) entry.is_checkpoint = true;
  }
  std::vector<Entry> all;
  for (auto& [name, entry] : found) all.push_back(std::move(entry));
  return all;
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> steps;
  for (const Entry& entry : entries()) {
    if (entry.is_checkpoint) steps.push_back(entry.step);
  }
  std::ranges::sort(steps, std::ranges::greater());
  return steps;
}

Manifest read_checkpoint(const fs::path& step_folder) {
  return CheckpointFiles(step_folder).read_manifest();
}

bool is_checkpoint(const fs::path& step_folder) {
  return CheckpointFiles(step_folder).has(kManifestFile);
}

Manifest CheckpointFolder::read(std::int64_t step) const {
  const CheckpointFiles files(step_folder(step));
  Manifest manifest = files.read_manifest();
  if (manifest.step == step) return manifest;
  throw DataError(files.shown(kManifestFile) + ": it is of step " + std::to_string(manifest.step));
}

void CheckpointFolder::commit(const Manifest& plain, const std::function<void()>& check) const {
  Manifest manifest = plain;
  if (key_) authenticate(manifest, *key_);
  const fs::path folder = step_folder(manifest.step);
  CheckpointFiles(folder).check_files(manifest);
  const std::string text = format_manifest(manifest);
  if (store_) {
    const auto no_check = [] {};
    store_->write_checked(step_name(manifest.step) + "/" + kManifestFile, text,
                          check ? check : no_check);
    return;
  }
  write_file_atomically(folder / kManifestFile, text);
  // The manifest is synced with its folder, and that folder's name with this: after a power loss
  // either all of it is there, or no checkpoint.
  sync_folder(path_);
  // Again: it may have been made by a process that was killed before it was synced.
  sync_name_of(path_);
}

void CheckpointFolder::remove_unnamed(const Manifest& manifest) const {
  std::set<std::string> named{kManifestFile};
  for (const ManifestShard& shard : manifest.shards) named.insert(shard.file);
  if (store_) {
    const std::string folder = step_name(manifest.step) + "/";
    for (const ObjectStore::File& file : store_->list(folder)) {
      const std::string name = file.name.substr(folder.size());
      if (!named.contains(name) && !name.starts_with(kRunFilesPrefix)) store_->remove(file.name);
    }
    return;
  }
  for (const fs::path& entry : entries_of(step_folder(manifest.step))) {
    if (!named.contains(entry.filename().string())) remove_path(entry);
  }
}

void CheckpointFolder::remove_old(std::int64_t step, std::int64_t keep,
                                  std::span<const std::int64_t> others) const {
  std::vector<Entry> found = entries();
  std::ranges::sort(found, std::ranges::greater(), &Entry::step);
  std::int64_t kept = 0;
  for (const Entry& each : found) {
    if (!each.is_checkpoint || each.step > step) continue;
    if (++kept > keep && std::ranges::count(others, each.step) == 0) remove(each);
  }
  for (const Entry& each : found) {
    if (!each.is_checkpoint && each.step < step) remove(each);
  }
}

void CheckpointFolder::remove_all() const {
  for (const Entry& entry : entries()) remove(entry);
}

// Without a manifest it is no checkpoint any more, whatever is left of it.
void CheckpointFolder::remove(const Entry& entry) const {
  if (store_) {
    // The manifest goes first: a removal that ends half-way leaves files, and no checkpoint that
    // lacks some.
    if (entry.is_checkpoint) store_->remove(entry.name + "/" + kManifestFile);
    for (const ObjectStore::File& file : store_->list(entry.name)) store_->remove(file.name);
    return;
  }
  const fs::path folder = path_ / entry.name;
  remove_path(folder / kManifestFile);
  // Before the shards go: after a power loss a manifest that came back would name files that are
  // gone.
  sync_folder(folder);
  remove_path(folder);
}

void verify_shards(const fs::path& step_folder, const Manifest& manifest, std::size_t first,
                   std::size_t every) {
  const CheckpointFiles files(step_folder);
  for (std::size_t i = first; i < manifest.shards.size(); i += every) {
    files.verify(manifest, manifest.shards[i]);
  }
}

}  // namespace troika
