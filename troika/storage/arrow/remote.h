// Internal: files behind URIs, through Arrow's file systems.
#pragma once

#include <arrow/filesystem/filesystem.h>
#include <arrow/io/interfaces.h>
#include <troika/storage/arrow/cached_file.h>
#include <troika/storage/store_plugin.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace troika::store_plugin {

[[nodiscard]] bool is_uri(std::string_view path);

// Thread safe.
class RemoteFiles {
 public:
  using Input = std::shared_ptr<arrow::io::RandomAccessFile>;

  // The one of this process.
  [[nodiscard]] static const RemoteFiles& instance();

  // Passes a file, or all files below a folder.
  [[nodiscard]] arrow::Status list(const std::string& uri, const TakeFile& take,
                                   Missing missing) const;
  // Makes the options of a URI known. Asks no store.
  [[nodiscard]] arrow::Status remember(const std::string& uri) const;
  [[nodiscard]] arrow::Result<Input> open(const std::string& uri, Caching keep) const;
  // Writes what `next` returns. Nothing is made where that throws, or fails.
  [[nodiscard]] arrow::Status write(const std::string& uri, const NextBytes& next,
                                    Attempts attempts) const;
  [[nodiscard]] arrow::Status remove(const std::string& uri) const;
  // Keeps blocks of files that are opened with Caching::kBlocks from now on.
  void set_cache(const Blocks& blocks) const { cache_ = &blocks; }

 private:
  using FileSystem = std::shared_ptr<arrow::fs::FileSystem>;
  // Returns the file system of "s3://bucket", made where it is not known with this `query`. That of
  // one attempt has connections of its own.
  [[nodiscard]] arrow::Result<FileSystem> file_system(const std::string& root,
                                                      const std::string& query,
                                                      Attempts attempts = Attempts::kMany) const;

  [[nodiscard]] arrow::Result<Input> open_remote(const std::string& uri) const;

  mutable std::mutex mutex_;
  mutable std::atomic<const Blocks*> cache_ = nullptr;
  mutable std::map<std::string, RemoteIdentity> identities_;  // by URI, of what was opened before
  mutable std::map<std::pair<Attempts, std::string>, FileSystem> known_;  // by root and query
  mutable std::map<std::string, std::string> latest_query_;  // by root; for URIs without one
};

}  // namespace troika::store_plugin
