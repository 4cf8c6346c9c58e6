#include <fnmatch.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/data/find_remote.h>
#include <troika/storage/object_store.h>
#include <troika/storage/remote_file.h>

#include <algorithm>

namespace troika {
namespace {

// Whether `*` and `?` match within names, and `**` any number of folders.
bool matches(std::string_view path, std::string_view pattern) {
  const std::size_t end = std::min(pattern.find('/'), pattern.size());
  const std::string segment(pattern.substr(0, end));
  const bool is_last = end == pattern.size();
  if (segment == "**") {
    if (is_last || matches(path, pattern.substr(end + 1))) return true;
    const std::size_t slash = path.find('/');
    return slash != std::string_view::npos && matches(path.substr(slash + 1), pattern);
  }
  const std::size_t slash = std::min(path.find('/'), path.size());
  const std::string name(path.substr(0, slash));
  if (::fnmatch(segment.c_str(), name.c_str(), FNM_PERIOD) != 0) return false;
  if (is_last || slash == path.size()) return is_last && slash == path.size();
  return matches(path.substr(slash + 1), pattern.substr(end + 1));
}

}  // namespace

std::string_view prefix_before_wildcards(std::string_view glob) {
  const std::size_t wildcard = glob.find_first_of("*[");
  return wildcard == std::string_view::npos ? glob : glob.substr(0, glob.rfind('/', wildcard));
}

std::vector<FoundFile> find_remote(const std::string& written) {
  const std::string pattern = with_s3_scheme(written);
  const std::size_t query = std::min(pattern.find('?'), pattern.size());
  const std::string glob = pattern.substr(0, query);
  const std::string base(prefix_before_wildcards(glob));
  std::vector<FoundFile> found;
  for (ListedFile& file : list_remote(base + pattern.substr(query))) {
    const bool is_meant = base == glob || matches(file.url, glob);
    const std::string_view below(file.url.data() + std::min(base.size(), file.url.size()));
    const bool is_dotted = below.find("/.") != std::string_view::npos;
    if (file.bytes > 0 && is_meant && !is_dotted)
      found.push_back({std::move(file.url), file.bytes});
  }
  if (found.empty()) {
    throw DataError("no file matches " + shown_path(glob),
                    "it has to lie below " + shown_path(base));
  }
  std::ranges::sort(found, {}, &FoundFile::path);
  return found;
}

}  // namespace troika
