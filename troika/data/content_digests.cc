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
constexpr Seconds kBetweenSaves(60);

// What stands for the contents of a file that is not read, or cannot be.
constexpr const char* kInStore = "store";
constexpr const char* kUnreadable = "unreadable";

// Hashes files, and keeps to the rate.
class FileHasher {
 public:
  FileHasher(const ContentDigestOptions& options, std::mutex& mutex,
             std::condition_variable_any& changed, const std::stop_token& stop)
      : rate_(options.rate), cache_(options.cache), mutex_(mutex), changed_(changed), stop_(stop) {}

  std::string hash(const DataFile& file) {
    if (is_remote(file.path)) return kInStore;
    const UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat before {};
    if (!fd.valid() || ::fstat(fd.get(), &before) != 0) return kUnreadable;
    if (before.st_size != file.size) return std::to_string(before.st_size) + "-bytes";
    if (const auto known = cache_.find(file.path, before)) return hex(*known);
    const std::optional<std::uint64_t> digest = read(fd.get());
    if (!digest) return kUnreadable;
    struct stat after {};
    const bool is_unchanged = ::fstat(fd.get(), &after) == 0 &&
                              FileIdentity(after).version() == FileIdentity(before).version();
    if (is_unchanged) cache_.add(file.path, before, *digest);
    if (Clock::now() - saved_ > kBetweenSaves) save();
    return hex(*digest);
  }

  void save() {
    cache_.save();
    saved_ = Clock::now();
  }

 private:
  std::optional<std::uint64_t> read(int fd) {
    ContentHash hash;
    while (!stop_.stop_requested()) {
      const ssize_t count = ::read(fd, chunk_.data(), chunk_.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return std::nullopt;
      if (count == 0) return hash.digest();
      hash.update(std::span(chunk_).first(static_cast<std::size_t>(count)));
      pause(static_cast<double>(count));
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
