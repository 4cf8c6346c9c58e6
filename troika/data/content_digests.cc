#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/file_identity.h>
#include <troika/base/hash.h>
#include <troika/base/time.h>
#include <troika/data/content_digests.h>
#include <troika/storage/digest_cache.h>
#include <troika/storage/object_store.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

namespace troika {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr int kLowestPriority = 19;
constexpr Seconds kBetweenSaves(15);

// What stands for the contents of a file that is not read, or cannot be.
constexpr const char* kInStore = "store";
constexpr const char* kUnreadable = "unreadable";

// Hashes files, and keeps to the rate.
class FileHasher {
 public:
  FileHasher(const ContentDigestOptions& options, std::mutex& mutex,
             std::condition_variable_any& changed, const std::stop_token& stop)
      : rate_(options.rate),
        part_bytes_(options.part_bytes),
        cache_(options.cache),
        mutex_(mutex),
        changed_(changed),
        stop_(stop) {}

  std::string hash(const DataFile& file) {
    if (is_remote(file.path)) return kInStore;
    const UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat before {};
    if (!fd.valid() || ::fstat(fd.get(), &before) != 0) return kUnreadable;
    if (before.st_size != file.size) return std::to_string(before.st_size) + "-bytes";
    if (file.size <= part_bytes_) {
      const std::optional<std::uint64_t> digest = part(fd.get(), file.path, before, 0);
      return digest ? hex(*digest) : kUnreadable;
    }
    // What a run that is stopped has read of a large file is not read again.
    ContentHash all;
    for (std::int64_t begin = 0; begin < file.size; begin += part_bytes_) {
      const std::string name = file.path + "\n" + std::to_string(begin / part_bytes_);
      const std::optional<std::uint64_t> digest = part(fd.get(), name, before, begin);
      if (!digest) return kUnreadable;
      all.update(hex(*digest));
    }
    return hex(all.digest());
  }

  void save() {
    cache_.save();
    saved_ = Clock::now();
  }

 private:
  // The digest of the part of a file from `begin` on, which the cache knows as `name`.
  std::optional<std::uint64_t> part(int fd, const std::string& name, const struct stat& before,
                                    std::int64_t begin) {
    if (const auto known = cache_.find(name, before)) return known;
    const std::optional<std::uint64_t> digest = read(fd, begin);
    if (!digest) return std::nullopt;
    struct stat after {};
    const bool is_unchanged =
        ::fstat(fd, &after) == 0 && FileIdentity(after).version() == FileIdentity(before).version();
    if (is_unchanged) cache_.add(name, before, *digest);
    if (Clock::now() - saved_ > kBetweenSaves) save();
    return digest;
  }

  std::optional<std::uint64_t> read(int fd, std::int64_t begin) {
    ContentHash hash;
    std::int64_t left = part_bytes_;
    while (!stop_.stop_requested()) {
      const auto wanted =
          static_cast<std::size_t>(std::min<std::int64_t>(left, std::ssize(chunk_)));
      const ssize_t count = ::pread(fd, chunk_.data(), wanted, begin);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return std::nullopt;
      hash.update(std::span(chunk_).first(static_cast<std::size_t>(count)));
      begin += count;
      left -= count;
      pause(static_cast<double>(count));
      if (count == 0 || left == 0) return hash.digest();
    }
    return std::nullopt;
  }

  // Until the rate allows more. What was not read in the past is not made up for.
  void pause(double bytes) {
    const auto now = Clock::now();
    const auto taken = std::chrono::duration_cast<Clock::duration>(Seconds(bytes / rate_));
    due_ = std::max(due_, now) + taken;
    std::unique_lock lock(mutex_);
    (void)changed_.wait_for(lock, stop_, due_ - now, [] { return false; });
  }

  double rate_;
  std::int64_t part_bytes_;
  DigestCache cache_;
  std::mutex& mutex_;
  std::condition_variable_any& changed_;
  const std::stop_token& stop_;
  std::vector<std::byte> chunk_ = std::vector<std::byte>(kChunk);
  Clock::time_point due_ = Clock::now(), saved_ = Clock::now();
};

}  // namespace

ContentDigests::ContentDigests(std::vector<DataFile> files, ContentDigestOptions options)
    : files_(std::move(files)),
      options_(std::move(options)),
      contents_(files_.size()),
      thread_([this](const std::stop_token& stop) { hash_all(stop); }) {}

void ContentDigests::hash_all(const std::stop_token& stop) {
  // Of this thread alone, as Linux has it. Without the right to it, it goes on as it is.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowestPriority);
  find_more(stop);
  FileHasher hasher(options_, mutex_, changed_, stop);
  for (std::size_t i = 0; i < files_.size() && !stop.stop_requested(); ++i) {
    contents_[i] = hasher.hash(files_[i]);
  }
  hasher.save();
  if (stop.stop_requested()) return;
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

// Samples that cannot be read end the run where it comes to them; here they differ from others.
void ContentDigests::find_more(const std::stop_token& stop) {
  if (!options_.more) return;
  try {
    std::vector<DataFile> more = options_.more(stop);
    files_.insert(files_.end(), std::make_move_iterator(more.begin()),
                  std::make_move_iterator(more.end()));
  } catch (const std::exception& error) {
    files_.push_back({error.what(), -1, 0});
  }
  contents_.resize(files_.size());
}

bool ContentDigests::wait(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, deadline.left(), [&] { return is_done(); });
}

std::uint64_t identity_of_files(std::span<const DataFile> files) {
  constexpr std::size_t kTried = 256;
  const std::size_t every = std::max<std::size_t>(1, files.size() / kTried);
  ContentHash hash;
  for (std::size_t i = 0; i < files.size(); i += every) {
    if (is_remote(files[i].path)) continue;
    if (const auto found = FileIdentity::of(files[i].path)) hash.update(found->file() + " ");
  }
  return hash.digest();
}

DataListing ContentDigests::listing() const {
  check(is_done(), "contents that are not known yet");
  return DataListing::of_contents(files_, contents_);
}

}  // namespace troika
