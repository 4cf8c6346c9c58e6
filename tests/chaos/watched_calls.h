// Internal. What the layer does at each of the system's calls; system_calls.cc stands before those.
#pragma once

#include <chaos/file_layer.h>
#include <dlfcn.h>
#include <sys/types.h>
#include <troika/base/function_ref.h>

#include <cstddef>
#include <string>

namespace troika::chaos {

// The function of the C library that this one stands before.
template <typename Function>
Function* next(Function* /*own*/, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Returns a path from the root; `folder` is that of openat(2).
[[nodiscard]] std::string absolute(int folder, const char* path);

// Count, record and carry out a call, or fail with errno set. The last argument makes the real one.
int open_watched(const std::string& path, int flags, FunctionRef<int()> open_now);
// `offset` is negative where the file's own counts. The real call writes so many bytes.
ssize_t write_watched(int fd, const void* bytes, std::size_t count, off_t offset,
                      FunctionRef<ssize_t(std::size_t)> write_now);
int sync_watched(int fd, FunctionRef<int()> sync_now);
int close_watched(int fd);
int rename_watched(const std::string& from, const std::string& to, FunctionRef<int()> rename_now);
int remove_watched(const std::string& path, FunctionRef<int()> remove_now);
int make_folder_watched(const std::string& path, FunctionRef<int()> make_now);
// A change that the record cannot hold.
int other_watched(int fd, FunctionRef<int()> change_now);

}  // namespace troika::chaos
