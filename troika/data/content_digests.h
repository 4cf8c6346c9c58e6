// Hashes of the contents of data files, made in the background while a run trains: on a thread of
// the lowest priority, at a bounded rate, and only for files that the cache does not know.
#pragma once

#include <troika/base/time.h>
#include <troika/data/data_listing.h>
#include <troika/data/dataset.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace troika {

// Returns a number that processes of one host have in common where they read the very same files,
// and not copies of them. It looks at some of the files.
[[nodiscard]] std::uint64_t identity_of_files(std::span<const DataFile> files);

struct ContentDigestOptions {
  // Bytes that are read in a second, at most.
  double rate = 64.0 * (1 << 20);
  // Larger files are hashed and cached in parts of so many bytes. The same for all that compare.
  std::int64_t part_bytes = std::int64_t{256} << 20;
  // The folder of a DigestCache; empty: no cache.
  std::filesystem::path cache = {};
  // Finds more files, which are hashed behind the others: NamesFiles::named_files(). May be empty.
  std::function<std::vector<DataFile>(const std::stop_token&)> more = {};
};

class ContentDigests {
 public:
  // Begins. A file in an object store is not read: its name and size suffice.
  explicit ContentDigests(std::vector<DataFile> files, ContentDigestOptions options = {});
  // Stops where it is. What has been hashed stays in the cache.
  ~ContentDigests() = default;
  ContentDigests(const ContentDigests&) = delete;
  ContentDigests& operator=(const ContentDigests&) = delete;

  // Return whether all files are done, and wait until they are or the deadline has passed. Any
  // thread.
  [[nodiscard]] bool is_done() const { return done_; }
  bool wait(const Deadline& deadline);
  // Returns the contents of all files. Requires is_done(). A file that cannot be read, or has
  // another size than at first, differs from what any other process has read.
  [[nodiscard]] DataListing listing() const;

 private:
  void hash_all(const std::stop_token& stop);
  void find_more(const std::stop_token& stop);

  std::vector<DataFile> files_;
  ContentDigestOptions options_;
  std::vector<std::string> contents_;  // by file
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::atomic<bool> done_ = false;
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace troika
