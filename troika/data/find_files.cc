#include <dirent.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/data/find_files.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

namespace troika {
namespace {

constexpr const char* kRelativeHint =
    "check the path; relative ones start at the folder the command was started in";

using FileIdentity = std::pair<dev_t, ino_t>;

bool has_wildcard(std::string_view text) {
  return text.find_first_of("*?[") != std::string_view::npos;
}

struct Candidate {
  FoundFile file;
  FileIdentity identity;
};

std::vector<std::string> segments_of(std::string_view pattern) {
  std::vector<std::string> segments;
  while (!pattern.empty()) {
    const std::size_t slash = std::min(pattern.find('/'), pattern.size());
    const std::string_view segment = pattern.substr(0, slash);
    if (!segment.empty() && segment != ".") segments.emplace_back(segment);
    pattern.remove_prefix(std::min(slash + 1, pattern.size()));
  }
  // A trailing "**" stands for every file below.
  if (!segments.empty() && segments.back() == "**") segments.emplace_back("*");
  return segments;
}

// Expands one glob. Walks each (folder, rest of the pattern) once: what can be found from there is
// the same by whatever name the folder was reached, and so loops of links end.
class GlobWalk {
 public:
  explicit GlobWalk(const std::string& pattern) : segments_(segments_of(pattern)) {
    walk(pattern.starts_with('/') ? "/" : "", 0);
  }
  std::vector<Candidate> found;
  bool met_empty_file = false;

 private:
  struct Entry {
    std::string name;
    unsigned char type;
  };

  // Nothing for a folder that is not there or not a folder.
  static std::vector<Entry> list(const std::string& folder) {
    std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(folder.empty() ? "." : folder.c_str()),
                                               ::closedir);
    std::vector<Entry> entries;
    if (!handle) {
      if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return entries;
      throw DataError("cannot list the folder " + shown_path(folder) + ": " +
                          std::generic_category().message(errno),
                      "check its permissions, or write a glob that does not descend into it");
    }
    while (const dirent* entry = ::readdir(handle.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") entries.push_back({std::string(name), entry->d_type});
    }
    return entries;
  }

  static bool is_folder(const std::string& path, unsigned char type) {
    if (type != DT_UNKNOWN && type != DT_LNK) return type == DT_DIR;
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  }

  static std::string join_path(const std::string& folder, const std::string& name) {
    return folder.empty() || folder.ends_with('/') ? folder + name : folder + "/" + name;
  }

  void add(std::string path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
    if (status.st_size == 0) {
      met_empty_file = true;
      return;
    }
    found.push_back({{std::move(path), status.st_size}, {status.st_dev, status.st_ino}});
  }

  void walk(const std::string& folder, std::size_t depth) {
    struct stat status {};
    if (::stat(folder.empty() ? "." : folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      return;
    }
    if (!visited_.insert({depth, status.st_dev, status.st_ino}).second) return;
    const std::string& segment = segments_[depth];
    const bool last = depth + 1 == segments_.size();
    if (segment == "**") {
      walk(folder, depth + 1);
    } else if (!has_wildcard(segment)) {
      last ? add(join_path(folder, segment)) : walk(join_path(folder, segment), depth + 1);
      return;
    }
    for (const Entry& entry : list(folder)) {
      // FNM_PERIOD: a leading dot must be written out; "**" counts as "*" here.
      if (::fnmatch(segment.c_str(), entry.name.c_str(), FNM_PERIOD) != 0) continue;
      std::string path = join_path(folder, entry.name);
      if (segment == "**") {
        if (is_folder(path, entry.type)) walk(path, depth);
      } else if (last) {
        if (entry.type != DT_DIR) add(std::move(path));
      } else if (is_folder(path, entry.type)) {
        walk(path, depth + 1);
      }
    }
  }

  std::vector<std::string> segments_;
  std::set<std::tuple<std::size_t, dev_t, ino_t>> visited_;
};

Candidate plain_file(const std::string& path, const struct stat& status) {
  if (S_ISDIR(status.st_mode)) {
    throw DataError(shown_path(path) + " is a folder, not a data file",
                    "write " + shown_path((path.ends_with('/') ? path : path + "/") + "**") +
                        " for all files in it");
  }
  if (!S_ISREG(status.st_mode)) {
    throw DataError("the data file " + shown_path(path) + " is not a regular file",
                    "pipes and devices are not read; write the content to a file first");
  }
  if (status.st_size == 0) throw DataError("the data file " + shown_path(path) + " is empty");
  return {{path, status.st_size}, {status.st_dev, status.st_ino}};
}

std::vector<Candidate> candidates_of(const std::string& pattern) {
  struct stat status {};
  // A file whose name holds wildcards is meant as it is written.
  if (::stat(pattern.c_str(), &status) == 0) return {plain_file(pattern, status)};
  const int reason = errno;
  if (!has_wildcard(pattern)) {
    if (reason == ENOENT) {
      throw DataError("the data file " + shown_path(pattern) + " does not exist", kRelativeHint);
    }
    throw DataError("cannot read the data file " + shown_path(pattern) + ": " +
                    std::generic_category().message(reason));
  }
  GlobWalk walk(pattern);
  if (walk.found.empty()) {
    throw DataError(walk.met_empty_file
                        ? "every file that " + shown_path(pattern) + " matches is empty"
                        : "no file matches " + shown_path(pattern),
                    walk.met_empty_file ? "" : kRelativeHint);
  }
  std::sort(walk.found.begin(), walk.found.end(),
            [](const Candidate& a, const Candidate& b) { return a.file.path < b.file.path; });
  return std::move(walk.found);
}

}  // namespace

std::vector<std::vector<FoundFile>> find_files(std::span<const std::string> patterns) {
  std::vector<std::vector<FoundFile>> files;
  std::set<FileIdentity> taken;
  for (const std::string& pattern : patterns) {
    std::vector<FoundFile>& of_pattern = files.emplace_back();
    for (Candidate& candidate : candidates_of(pattern)) {
      if (taken.insert(candidate.identity).second) of_pattern.push_back(std::move(candidate.file));
    }
    if (of_pattern.empty()) {
      throw DataError(
          "every file that " + shown_path(pattern) + " matches belongs to an earlier path",
          "remove this path, or make the earlier ones narrower");
    }
  }
  return files;
}

}  // namespace troika
