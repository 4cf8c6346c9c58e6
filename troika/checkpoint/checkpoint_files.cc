#include <fcntl.h>
#include <sys/mman.h>
#include <troika/base/error.h>
#include <troika/checkpoint/checkpoint_files.h>
#include <troika/checkpoint/sha256.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>
#include <utility>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;

[[noreturn]] void throw_damaged(const std::string& file) {
  throw DataError(file + " is damaged: its SHA-256 is not what the manifest says");
}

[[noreturn]] void throw_size(const std::string& file, std::uint64_t bytes, std::uint64_t expected) {
  throw DataError(file + " has " + std::to_string(bytes) + " bytes instead of " +
                  std::to_string(expected));
}

// A manifest that has lost its authentication would pass for that of plain files.
void check_authenticity(const std::string& file, std::span<const std::byte> begin,
                        const Manifest& manifest) {
  if (!manifest.key_id.empty() || !is_encrypted(begin)) return;
  throw DataError(
      file + " is encrypted, and its manifest has been changed: no key authenticates it",
      "the checkpoint before it may be whole");
}

// Asks for the bytes of a mapping before they are touched: the disk reads what comes next while
// this is at work, and many pages are mapped at once. Both are hints: what fails is done page by
// page.
void read_ahead(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  (void)::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_WILLNEED);
}
void map_pages(std::span<const std::byte> bytes) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers lack
  (void)::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), kPopulateRead);
}

// Returns the SHA-256 of a mapped file.
std::string sha256_ahead(std::span<const std::byte> file) {
  constexpr std::size_t kWindow = std::size_t{4} << 20;  // a multiple of any page
  const auto window = [&](std::size_t begin) {
    return file.subspan(begin, std::min(kWindow, file.size() - begin));
  };
  constexpr std::size_t kAhead = 2 * kWindow;
  Sha256 hash;
  read_ahead(file.first(std::min(kAhead, file.size())));
  for (std::size_t begin = 0; begin < file.size(); begin += kWindow) {
    if (begin + kAhead < file.size()) read_ahead(window(begin + kAhead));
    map_pages(window(begin));
    hash.update(window(begin));
  }
  return hash.digest();
}

// A file among the temporary ones that has no name any more, so that nothing of it stays.
class UnnamedFile {
 public:
  UnnamedFile() {
    const fs::path folder = make_temporary_folder("troika-checkpoint");
    path_ = folder / "file";
    fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const int error = errno;
    std::error_code ignored;
    // The name goes while the file is open: nothing of it stays on the disk, however this process
    // ends.
    fs::remove_all(folder, ignored);
    if (!fd_.valid()) throw_storage_error("write", path_, error);
  }
  void write(std::span<const std::byte> bytes) const { write_all(fd_.get(), bytes, path_); }
  [[nodiscard]] MappedFile map() const {
    return MappedFile(fs::path("/proc/self/fd") / std::to_string(fd_.get()));
  }

 private:
  fs::path path_;
  UniqueFd fd_;
};

}  // namespace

CheckpointFiles::CheckpointFiles(fs::path place) : place_(std::move(place)) {
  if (is_remote(place_.native())) store_.emplace(place_.native());
}

std::string CheckpointFiles::shown(const std::string& name) const {
  return shown_place(place_below(place_, name));
}

bool CheckpointFiles::has(const std::string& name) const {
  if (store_) return !store_->list(name).empty();
  std::error_code ignored;
  return fs::exists(place_ / name, ignored);
}

Manifest CheckpointFiles::read_manifest() const {
  const std::string source = shown(kManifestFile);
  Manifest manifest = parse_manifest(store_ ? store_->read(kManifestFile, kMaxManifestBytes)
                                            : read_file(place_ / kManifestFile, kMaxManifestBytes),
                                     source);
  check_files(manifest);
  (void)key_of(manifest, source);
  return manifest;
}

void CheckpointFiles::check_files(const Manifest& manifest) const {
  if (store_) {
    std::map<std::string, std::uint64_t> sizes;
    for (const ObjectStore::File& file : store_->list()) sizes[file.name] = file.bytes;
    for (const ManifestShard& shard : manifest.shards) {
      const auto found = sizes.find(shard.file);
      if (found == sizes.end()) throw DataError("there is no " + shown(shard.file));
      if (found->second != shard.bytes) throw_size(shown(shard.file), found->second, shard.bytes);
    }
    return;
  }
  for (const ManifestShard& shard : manifest.shards) {
    const fs::path path = place_ / shard.file;
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(path, error);
    if (error) {
      throw DataError("cannot read " + shown_path(path) + ": " + error.message(),
                      "all hosts have to see the folder of checkpoints under the same path");
    }
    if (bytes != shard.bytes) throw_size(shown_path(path), bytes, shard.bytes);
    check_authenticity(shown_path(path), MappedFile(path).bytes(), manifest);
  }
}

// The files of a store are not looked into before: here it is done with their first bytes.
void CheckpointFiles::fetch(const Manifest& manifest, const ManifestShard& shard,
                            const std::function<void(std::span<const std::byte>)>& take) const {
  Sha256 hash;
  std::uint64_t size = 0;
  store_->read(shard.file, [&](std::span<const std::byte> bytes) {
    if (size == 0) check_authenticity(shown(shard.file), bytes, manifest);
    size += bytes.size();
    hash.update(bytes);
    take(bytes);
  });
  if (size != shard.bytes) throw_size(shown(shard.file), size, shard.bytes);
  // Only at the end is it known whether the bytes are right: what takes them must not count before
  // this returns.
  if (hash.digest() != shard.sha256) throw_damaged(shown(shard.file));
}

MappedFile CheckpointFiles::open(const Manifest& manifest, const ManifestShard& shard) const {
  if (!store_) return MappedFile(place_ / shard.file);
  try {
    const UnnamedFile copy;
    fetch(manifest, shard, [&](std::span<const std::byte> bytes) { copy.write(bytes); });
    return copy.map();
  } catch (const StorageError& error) {
    throw DataError("cannot copy " + shown(shard.file) + " to this host: " + error.what(),
                    "TMPDIR names a folder for temporary files: it takes those that a rank reads");
  }
}

void CheckpointFiles::verify(const Manifest& manifest, const ManifestShard& shard) const {
  if (store_) {
    fetch(manifest, shard, [](std::span<const std::byte>) {});
    return;
  }
  const MappedFile file(place_ / shard.file);
  if (file.size() != shard.bytes || sha256_ahead(file.bytes()) != shard.sha256) {
    throw_damaged(shown(shard.file));
  }
}

void CheckpointFiles::write(const std::string& name,
                            const std::function<std::span<const std::byte>()>& next) const {
  if (store_) {
    store_->write(name, next);
    return;
  }
  make_folders(place_);
  AtomicFile file(place_ / name);
  for (auto bytes = next(); !bytes.empty(); bytes = next()) file.write(bytes);
  file.commit();
}

}  // namespace troika
