// Turns the paths and globs of a recipe into a sorted list of regular files, each counted once
// however many names or symbolic links lead to it. URLs name files of object stores.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct FoundFile {
  std::string path;       // or a URL without its options
  std::int64_t size = 0;  // bytes, > 0

  bool operator==(const FoundFile&) const = default;
};

// Long work calls it from time to time, so that those who wait for the result do not give up.
using GoesOn = std::function<void()>;

struct FileSearch {
  // The files of each pattern, by pattern, each list sorted by path; none is empty.
  std::vector<std::vector<FoundFile>> files;
  // Folders of runs that globs have met and not entered, sorted.
  std::vector<std::string> left_out;
};

// Finds the files of each pattern. In a pattern `*`, `?` and `[...]` match within one name, and
// `**` matches any number of folders (at the end: every file below). Names that begin with a dot
// are matched only by patterns that do. A glob skips empty files, dangling links and anything but
// regular files; links to folders are followed, loops end. It does not enter folders of runs, whose
// models and metrics are no data, unless it names them. A file that several patterns find belongs
// to the first of them. Throws DataError, naming the path or glob: one that is missing, a folder,
// not a regular file, empty or unreadable; a glob that matches no file, only empty ones, or only
// files of earlier patterns; a folder on the way that cannot be listed. StorageError where an
// object store cannot be reached. `goes_on`, if given, is called for each folder that is entered.
[[nodiscard]] FileSearch find_files(std::span<const std::string> patterns,
                                    const GoesOn& goes_on = {});

// Says what was left out, in a sentence without a full stop; empty where nothing was.
[[nodiscard]] std::string describe_left_out(const FileSearch& search);

}  // namespace troika
