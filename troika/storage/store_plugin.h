// Internal: what troika takes of Apache Arrow's file systems, which are a plug-in. No type of
// Arrow's passes. URIs are as "s3://bucket/folder/file?region=eu-west-1"; what follows the '?'
// holds for that bucket from then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace troika::store_plugin {

// Receive results in calls, as the two sides may have different allocators. What they are given
// lasts until they return.
using TakeText = std::function<void(std::string_view)>;
using TakeFile = std::function<void(std::string_view uri, std::int64_t bytes)>;
// Receives the bytes of a file in order. Returns false to stop.
using TakeBytes = std::function<bool(std::span<const std::byte>)>;
// Returns the next bytes of a file that is written, none at its end.
using NextBytes = std::function<std::span<const std::byte>()>;

// Keeps blocks of remote files on this host. Thread safe. `file` is a text that only one
// content of one file has.
class Blocks {
 public:
  virtual ~Blocks() = default;
  // Fills `out` with bytes of a block, from `offset`. Returns false where the block is not there.
  [[nodiscard]] virtual bool read(std::string_view file, std::int64_t block, std::size_t offset,
                                  std::span<std::byte> out) const = 0;
  // Keeps a whole block, if it can.
  virtual void put(std::string_view file, std::int64_t block,
                   std::span<const std::byte> bytes) const = 0;
};

// Says whether what is read is kept on this host, for data that are read again.
enum class Caching { kNothing, kBlocks };

// Says what it means to list a place where there is nothing. A bucket that is not there is always
// an error.
enum class Missing { kIsAnError, kIsEmpty };

// Says how often a request that fails for a reason that may pass is made: once, for callers that
// look at something before each attempt, or again for the patience of this process.
enum class Attempts { kOne, kMany };

// A file that is read at any place. A function that returns false has passed the reason to `error`.
// Thread safe.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Fills `out` with the bytes from `offset` on, which are all inside the file.
  [[nodiscard]] virtual bool read_at(std::int64_t offset, std::span<std::byte> out,
                                     const TakeText& error) const = 0;
};

// A function that returns false has passed the reason to `error`. Thread safe.
class StorePlugin {
 public:
  virtual ~StorePlugin() = default;
  // Passes a file, or all files below a folder, by URIs without options.
  [[nodiscard]] virtual bool list(const std::string& uri, Missing missing, const TakeFile& take,
                                  const TakeText& error) const = 0;
  // Makes the options of a URI known, as reading or listing it does. Asks no store.
  [[nodiscard]] virtual bool remember(const std::string& uri, const TakeText& error) const = 0;
  // Opens a file. Returns null where `error` has been given the reason.
  [[nodiscard]] virtual std::unique_ptr<OpenFile> open(const std::string& uri, Caching keep,
                                                       const TakeText& error) const = 0;
  [[nodiscard]] virtual bool read(const std::string& uri, Caching keep, const TakeBytes& take,
                                  const TakeText& error) const = 0;
  // Writes a file. If `next` throws, the file is not made and the exception passes.
  [[nodiscard]] virtual bool write(const std::string& uri, const NextBytes& next, Attempts attempts,
                                   const TakeText& error) const = 0;
  // Has requests that fail for a reason that may pass made again for so many seconds. `warning` is
  // called with the reason once an outage, from any thread.
  virtual void set_patience(double seconds, const TakeText& warning) const = 0;
  // Has Caching::kBlocks, and tables, go through `blocks`, which outlive the plug-in. None at
  // first.
  virtual void set_cache(const Blocks& blocks) const = 0;
  // Removes a file; that it is not there is no error.
  [[nodiscard]] virtual bool remove(const std::string& uri, const TakeText& error) const = 0;
};

inline constexpr const char* kFile = "libtroika_arrow.so";
using PluginEntry = const StorePlugin* (*)();
inline constexpr const char* kPluginEntry = "troika_store_plugin";

}  // namespace troika::store_plugin
