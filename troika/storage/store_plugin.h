// Internal: what troika takes of Apache Arrow's file systems, which are a plug-in. No type of
// Arrow's passes. URIs are as "s3://bucket/folder/file?region=eu-west-1"; what follows the '?'
// holds for that bucket from then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

// A function that returns false has passed the reason to `error`. Thread safe.
class Plugin {
 public:
  virtual ~Plugin() = default;
  // Passes all files below a folder, by URIs without options. Nothing is there: no file, no error.
  [[nodiscard]] virtual bool list(const std::string& uri, const TakeFile& take,
                                  const TakeText& error) const = 0;
  [[nodiscard]] virtual bool read(const std::string& uri, const TakeBytes& take,
                                  const TakeText& error) const = 0;
  // Writes a file. If `next` throws, the file is not made and the exception passes.
  [[nodiscard]] virtual bool write(const std::string& uri, const NextBytes& next,
                                   const TakeText& error) const = 0;
  // Removes a file; that it is not there is no error.
  [[nodiscard]] virtual bool remove(const std::string& uri, const TakeText& error) const = 0;
};

inline constexpr const char* kFile = "libtroika_arrow.so";
using Entry = const Plugin* (*)();
inline constexpr const char* kEntry = "troika_store_plugin";

}  // namespace troika::store_plugin
