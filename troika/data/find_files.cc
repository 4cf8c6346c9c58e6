#include <dirent.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/file_identity.h>
#include <troika/base/text.h>
#include <troika/data/find_files.h>
#include <troika/data/find_remote.h>
#include <troika/storage/object_store.h>
#include <unistd.h>

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

bool has_wildcard(std::string_view text) {
  return text.find_first_of("*?[") != std::string_view::npos;
}

// A run's folder has its lock and its recorders from the start, and a recipe from its first step.
bool is_run_folder(const std::string& folder) {
  const auto has = [&](const char* name) { return ::access((folder + name).c_str(), F_OK) == 0; };
  if (has("/.lock")) return has("/recipe.toml") || has("/flight");
  return has("/recipe.toml") && (has("/metrics.jsonl") || has("/summary.json"));
}

struct Candidate {
  FoundFile file;
  std::string identity;  // FileIdentity::file(), or the URL of a file of an object store
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
  GlobWalk(const std::string& pattern, const GoesOn& goes_on)
      : segments_(segments_of(pattern)), goes_on_(goes_on) {
    walk(pattern.starts_with('/') ? "/" : "", 0);
  }
  std::vector<Candidate> found;
  std::vector<std::string> run_folders;  // not entered
  bool met_empty_file = false;

 private:
  struct Entry {
    std::string name;
    unsigned char type;
  };

  // Nothing for a folder that is not there or not a folder. Sorted: where two names lead to one
  // folder, all hosts have to enter it by the same one.
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
    std::ranges::sort(entries, {}, &Entry::name);
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
    found.push_back({{std::move(path), status.st_size}, FileIdentity(status).file()});
  }

  // A folder that a wildcard has matched.
  void enter(const std::string& folder, std::size_t depth) {
    if (is_run_folder(folder)) {
      run_folders.push_back(folder);
    } else {
      walk(folder, depth);
    }
  }

  void walk(const std::string& folder, std::size_t depth) {
    struct stat status {};
    if (::stat(folder.empty() ? "." : folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      return;
    }
    if (!visited_.insert({depth, status.st_dev, status.st_ino}).second) return;
    if (goes_on_) goes_on_();
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
        if (is_folder(path, entry.type)) enter(path, depth);
      } else if (last) {
        if (entry.type != DT_DIR) add(std::move(path));
      } else if (is_folder(path, entry.type)) {
        enter(path, depth + 1);
      }
    }
  }

  std::vector<std::string> segments_;
  const GoesOn& goes_on_;
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
  return {{path, status.st_size}, FileIdentity(status).file()};
}

// Why a glob has found nothing.
DataError nothing_found(const std::string& pattern, const GlobWalk& walk) {
  if (walk.met_empty_file) {
    return DataError("every file that " + shown_path(pattern) + " matches is empty");
  }
  return DataError("no file matches " + shown_path(pattern),
                   walk.run_folders.empty()
                       ? kRelativeHint
                       : "what runs have written, as in " + shown_path(walk.run_folders.front()) +
                             ", is left out unless the path names that folder");
}

// A folder of a store stands for no files, as one of this host does.
std::vector<Candidate> candidates_of_store(const std::string& pattern) {
  const std::string glob = with_s3_scheme(pattern.substr(0, pattern.find('?')));
  const bool is_one_file = prefix_before_wildcards(glob) == glob;
  std::vector<Candidate> candidates;
  for (FoundFile& file : find_remote(pattern)) {
    if (is_one_file && file.path != glob) {
      throw DataError(shown_path(glob) + " is a folder, not a data file",
                      "write " + shown_path(glob + "/**") + " for all files in it");
    }
    std::string url = file.path;
    candidates.push_back({std::move(file), std::move(url)});
  }
  return candidates;
}

// Adds run folders to `left_out`.
std::vector<Candidate> candidates_of(const std::string& pattern, std::set<std::string>& left_out,
                                     const GoesOn& goes_on) {
  if (is_remote(pattern)) return candidates_of_store(pattern);
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
  GlobWalk walk(pattern, goes_on);
  if (walk.found.empty()) throw nothing_found(pattern, walk);
  left_out.insert(walk.run_folders.begin(), walk.run_folders.end());
  std::sort(walk.found.begin(), walk.found.end(),
            [](const Candidate& a, const Candidate& b) { return a.file.path < b.file.path; });
  return std::move(walk.found);
}

}  // namespace

FileSearch find_files(std::span<const std::string> patterns, const GoesOn& goes_on) {
  FileSearch search;
  std::set<std::string> left_out;
  std::set<std::string> taken;
  for (const std::string& pattern : patterns) {
    std::vector<FoundFile>& of_pattern = search.files.emplace_back();
    for (Candidate& candidate : candidates_of(pattern, left_out, goes_on)) {
      if (taken.insert(candidate.identity).second) of_pattern.push_back(std::move(candidate.file));
    }
    if (of_pattern.empty()) {
      throw DataError(
          "every file that " + shown_path(pattern) + " matches belongs to an earlier path",
          "remove this path, or make the earlier ones narrower");
    }
  }
  search.left_out.assign(left_out.begin(), left_out.end());
  return search;
}

std::string describe_left_out(const FileSearch& search) {
  if (search.left_out.empty()) return "";
  constexpr std::size_t kShown = 3;
  std::vector<std::string> names;
  for (const std::string& folder : search.left_out) {
    if (names.size() < kShown) names.push_back(shown_path(folder));
  }
  const std::size_t more = search.left_out.size() - names.size();
  return std::string("what lies in run folders is left out of the data: ") + join(names, ", ") +
         (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

}  // namespace troika
