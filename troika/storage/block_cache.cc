#include <fcntl.h>
#include <sys/stat.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/observe/log.h>
#include <troika/storage/block_cache.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
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

constexpr std::size_t kNameDigits = 32;
constexpr std::size_t kFolderDigits = 2;
// A file that is being written is younger, unless its process has ended.
constexpr auto kLongestWrite = std::chrono::hours(1);

// "<32 digits>-<block>", in the folder of its first two digits, or what a process that has ended
// has left of one: "<32 digits>-<block>.<process>-<number>.tmp".
bool is_name_of_block(std::string_view name, std::string_view folder) {
  if (name.size() < kNameDigits + 2 || !name.starts_with(folder)) return false;
  if (name[kNameDigits] != '-' ||
      name.substr(0, kNameDigits).find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return false;
  }
  const std::string_view rest = name.substr(kNameDigits + 1);
  const std::string_view block = rest.substr(0, rest.find('.'));
  if (block.empty() || block.find_first_not_of("0123456789") != std::string_view::npos)
    return false;
  return block.size() == rest.size() || rest.ends_with(".tmp");
}

// The blocks in a folder, which may hold files of the user's own: these are none of the cache's.
std::vector<Found> blocks_in(const fs::path& folder) {
  std::vector<Found> found;
  const auto now = fs::file_time_type::clock::now();
  std::error_code error;
  for (fs::directory_iterator part(folder, error), end; !error && part != end;
       part.increment(error)) {
    const std::string part_name = part->path().filename().string();
    std::error_code none;
    if (part_name.size() != kFolderDigits || !part->is_directory(none)) continue;
    for (fs::directory_iterator each(part->path(), none), last; !none && each != last;
         each.increment(none)) {
      std::error_code gone;  // others remove blocks as well
      if (!is_name_of_block(each->path().filename().string(), part_name)) continue;
      if (!each->is_regular_file(gone)) continue;
      const auto used = each->last_write_time(gone);
      const std::uintmax_t bytes = each->file_size(gone);
      const bool is_written = each->path().extension() == ".tmp" && now - used < kLongestWrite;
      if (!gone && !is_written) found.push_back({used, each->path(), bytes});
    }
  }
  return found;
}

}  // namespace

BlockCache::BlockCache(fs::path folder, std::uint64_t most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes), uncounted_(most_bytes) {}

fs::path BlockCache::path_of(std::string_view file, std::int64_t block) const {
  const std::string name = hex(content_hash(file)) + hex(content_hash(file, kOtherSeed));
  return folder_ / name.substr(0, kFolderDigits) / (name + "-" + std::to_string(block));
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
