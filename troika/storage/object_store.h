// Files in an object store, or in another file system behind a URL: "s3://bucket/folder". The store
// is reached through a plug-in with Apache Arrow's file systems, which is loaded when it is needed.
#pragma once

#include <troika/base/time.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Returns whether a place is behind a URL, as in s3://bucket/folder, and not a path of this host.
[[nodiscard]] bool is_remote(std::string_view place);

// Returns a path or a URL as messages show it: in quotes, a URL without its options.
[[nodiscard]] std::string shown_place(const std::filesystem::path& place);
// Returns "s3://bucket" for "s3a://bucket", as Hadoop calls it; any other place as it is.
[[nodiscard]] std::string with_s3_scheme(std::string url);
// Returns the place of that name below another: a path, or a URL with the options of the other.
[[nodiscard]] std::filesystem::path place_below(const std::filesystem::path& place,
                                                const std::string& name);

// Returns a hint for the reason of a store that refuses, or does not answer.
[[nodiscard]] std::string remote_hint(std::string_view reason);

// Returns whether the reason of a store says that it cannot be reached, or has failed, which may
// pass; not that a name or a right is wrong.
[[nodiscard]] bool is_outage(std::string_view reason);

// Throws what the `reason` of a store means to one who cannot `do_what`, as in "list
// 's3://bucket'": StorageError where the store cannot be reached, which is no fault of the data;
// DataError elsewhere.
[[noreturn]] void throw_unread(const std::string& do_what, std::string_view reason);

// Has requests of this process to object stores made again for so long where they fail for a reason
// that may pass, with growing pauses and one warning in the log an outage. 0: they fail at once.
// Thread safe.
void set_store_patience(Seconds patience);
// Keeps blocks of the data that this process reads from object stores in a folder of this host from
// now on, about `most_bytes` of them: tables, images, and what ObjectStore::read_data() reads. The
// first call counts. Thread safe.
void set_store_cache(const std::filesystem::path& folder, std::uint64_t most_bytes);
// Loads the plug-in and gives it the patience of this process. For those who read through the
// plug-in without an ObjectStore. Throws UsageError where this build has none.
void prepare_stores();

namespace store_plugin {
enum class Caching;
}

// All files below one URL, by names such as "step-00000100/manifest.json". What a name stands for
// is there entirely or not at all, and replaced as a whole. Thread safe.
class ObjectStore {
 public:
  // Remembers the place; options follow a '?': "s3://bucket/runs?region=eu-west-1". Throws
  // UsageError where this build has no plug-in for it.
  explicit ObjectStore(const std::string& url);

  // Returns the URL without its options, for messages.
  [[nodiscard]] const std::string& place() const { return place_; }

  struct File {
    std::string name;
    std::uint64_t bytes = 0;
  };
  // Lists all files whose names begin with the folder `below`, in order of their names; there may
  // be none. Throws DataError naming the place, with what the store says;
  // StorageError where it cannot be reached. So do the other functions that read.
  [[nodiscard]] std::vector<File> list(const std::string& below = "") const;
  // Throws DataError if the file is not there, or longer than `most`.
  [[nodiscard]] std::string read(const std::string& name, std::uint64_t most) const;
  // Reads a file of the data, which set_store_cache() keeps on this host.
  [[nodiscard]] std::string read_data(const std::string& name, std::uint64_t most) const;
  // Passes the bytes of a file in order. Throws DataError, and what `take` throws.
  void read(const std::string& name,
            const std::function<void(std::span<const std::byte>)>& take) const;
  // Writes a file of the bytes that `next` returns, none at its end. Throws StorageError, and what
  // `next` throws; nothing new is there then.
  void write(const std::string& name,
             const std::function<std::span<const std::byte>()>& next) const;
  void write(const std::string& name, std::string_view text) const;
  // Writes a small file, in as many attempts as the patience of this process allows. Calls `check`
  // right before each: what it throws ends the call. For a program that may write only as long as
  // the place is its own. An attempt takes no longer than the time-outs of the store. Throws
  // StorageError.
  void write_checked(const std::string& name, std::string_view text,
                     const std::function<void()>& check) const;
  // Copies a file of this host to the store. Throws StorageError; nothing new is there then.
  void upload(const std::filesystem::path& from, const std::string& name) const;
  // Copies a file of the store to this host, where it appears whole or not at all. Throws
  // DataError, StorageError.
  void download(const std::string& name, const std::filesystem::path& to) const;
  // Removes a file, whether it is there or not. Throws StorageError.
  void remove(const std::string& name) const;

 private:
  [[nodiscard]] std::string url_of(const std::string& name) const;
  [[nodiscard]] std::string read_whole(const std::string& name, std::uint64_t most,
                                       store_plugin::Caching keep) const;

  std::string place_;    // without a '/' at its end
  std::string options_;  // with their '?'
};

}  // namespace troika
