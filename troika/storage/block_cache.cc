#include <fcntl.h>
#include <sys/stat.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/observe/log.h>
#include <troika/storage/block_cache.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHashBytes = sizeof(std::uint64_t);
constexpr std::uint64_t kOtherSeed = 1;  // two hashes of 64 bits make a name that nothing else has
constexpr std::uint64_t kLooks = 16;     // while as many bytes are added as may be there

struct Found {
  fs::file_time_type used;
  fs::path path;
  std::uint64_t bytes;
};

std::vector<Found> blocks_in(const fs::path& folder) {
  std::vector<Found> found;
  std::error_code error;
  for (fs::recursive_directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    std::error_code gone;  // others remove blocks as well
    if (!each->is_regular_file(gone)) continue;
    const auto used = each->last_write_time(gone);
    const std::uintmax_t bytes = each->file_size(gone);
    if (!gone) found.push_back({used, each->path(), bytes});
  }
  return found;
}

}  // namespace

BlockCache::BlockCache(fs::path folder, std::uint64_t most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes), uncounted_(most_bytes) {}

fs::path BlockCache::path_of(std::string_view file, std::int64_t block) const {
  const std::string name = hex(content_hash(file)) + hex(content_hash(file, kOtherSeed));
  return folder_ / name.substr(0, 2) / (name + "-" + std::to_string(block));
}

bool BlockCache::is_whole(const fs::path& path) const {
  const std::scoped_lock lock(mutex_);
  if (whole_.contains(path.native())) return true;
  try {
    const MappedFile content(path);
    const std::span<const std::byte> bytes = content.bytes();
    if (bytes.size() < kHashBytes) return false;
    std::uint64_t hash = 0;
    std::memcpy(&hash, bytes.last(kHashBytes).data(), kHashBytes);
    if (content_hash(bytes.first(bytes.size() - kHashBytes)) != hash) return false;
  } catch (const Error&) {
    return false;
  }
  std::error_code ignored;  // the time only says which block goes first
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  whole_.insert(path.native());
  return true;
}

bool BlockCache::read(std::string_view file, std::int64_t block, std::size_t offset,
                      std::span<std::byte> out) const {
  const fs::path path = path_of(file, block);
  std::error_code error;
  if (!fs::exists(path, error) || !is_whole(path)) return false;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::size_t done = 0;
  while (fd.valid() && done < out.size()) {
    const ssize_t got =
        ::pread(fd.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done == out.size();
}

void BlockCache::put(std::string_view file, std::int64_t block,
                     std::span<const std::byte> bytes) const {
  try {
    write(path_of(file, block), bytes);
    count(bytes.size() + kHashBytes);
  } catch (const Error& error) {
    warn_once(error.what());
  }
}

// Nothing is synced: a file that a power loss leaves damaged does not have its hash.
void BlockCache::write(const fs::path& path, std::span<const std::byte> bytes) const {
  static std::atomic<std::uint64_t> number = 0;
  make_folders(path.parent_path());
  const fs::path part =
      path.native() + "." + std::to_string(::getpid()) + "-" + std::to_string(number++) + ".tmp";
  const UniqueFd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) throw_storage_error("write", part, errno);
  const std::uint64_t hash = content_hash(bytes);
  try {
    write_all(fd.get(), bytes, part);
    write_all(fd.get(), std::as_bytes(std::span(&hash, 1)), part);
  } catch (const StorageError&) {
    ::unlink(part.c_str());
    throw;
  }
  if (::rename(part.c_str(), path.c_str()) != 0) throw_storage_error("rename", part, errno);
}

void BlockCache::count(std::uint64_t bytes) const {
  const std::scoped_lock lock(mutex_);
  uncounted_ += bytes;
  if (uncounted_ < most_bytes_ / kLooks) return;
  uncounted_ = 0;
  make_room();
}

void BlockCache::make_room() const {
  std::vector<Found> found = blocks_in(folder_);
  std::uint64_t bytes = 0;
  for (const Found& each : found) bytes += each.bytes;
  if (bytes <= most_bytes_) return;
  std::ranges::sort(found, {}, &Found::used);
  const std::uint64_t wanted = most_bytes_ - most_bytes_ / kLooks;
  for (const Found& each : found) {
    if (bytes <= wanted) break;
    std::error_code ignored;
    fs::remove(each.path, ignored);
    whole_.erase(each.path.native());
    bytes -= each.bytes;
  }
}

void BlockCache::warn_once(std::string_view what) const {
  if (has_warned_.exchange(true)) return;
  log_warning("data.cache keeps nothing: " + std::string(what));
}

}  // namespace troika
