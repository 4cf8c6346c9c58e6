// Finds the files of a table: patterns, folders with partitions, and lists of object stores.
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/file_identity.h>
#include <troika/data/find_remote.h>
#include <troika/data/sources/table/arrow_library.h>
#include <troika/data/sources/table/table_files.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace troika {
namespace {

// "data" becomes "data/**" where it is a folder.
std::string with_files_of_folder(std::string pattern) {
  std::error_code error;
  if (!std::filesystem::is_directory(pattern, error)) return pattern;
  while (pattern.size() > 1 && pattern.ends_with('/')) pattern.pop_back();
  return pattern + "/**";
}

// Whether Spark takes a folder or a file of this name for no data. A folder "_p=1" is a partition.
bool is_hidden_name(std::string_view name) {
  return name.starts_with('_') && name.find('=') == std::string_view::npos;
}

// Whether one of the names of a path is hidden.
bool has_hidden_name(std::string_view path) {
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    if (is_hidden_name(path.substr(0, slash))) return true;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return false;
}

// Whether a name below the part without wildcards begins with '_'.
bool is_hidden(std::string_view path, std::string_view pattern) {
  const std::size_t wildcard = pattern.find_first_of("*?[");
  if (wildcard == std::string_view::npos) return false;
  const std::size_t slash = pattern.rfind('/', wildcard);
  const std::size_t below = slash == std::string_view::npos ? 0 : slash;
  if (pattern.substr(below).find("/_") != std::string_view::npos || pattern.starts_with('_')) {
    return false;  // it is asked for
  }
  return has_hidden_name(path.substr(std::min(below, path.size())));
}

// Files of an object store, but for those that Spark takes for no data.
void find_remote_tables(const std::string& pattern, std::vector<FoundFile>& all) {
  const std::string glob = with_s3_scheme(pattern.substr(0, pattern.find('?')));
  const std::size_t base = prefix_before_wildcards(glob).size();
  for (FoundFile& file : find_remote(pattern)) {
    const std::string_view path = file.path;
    if (!has_hidden_name(path.substr(std::min(base, path.size())))) all.push_back(std::move(file));
  }
}

}  // namespace

std::vector<FoundFile> find_table_files(std::span<const std::string> patterns) {
  fit_arrow_threads();
  std::vector<std::string> globs;
  std::vector<FoundFile> all;
  for (const std::string& pattern : patterns) {
    if (is_remote(pattern)) {
      find_remote_tables(pattern, all);
    } else {
      globs.push_back(with_files_of_folder(pattern));
    }
  }
  const FileSearch search = find_files(globs);
  for (std::size_t i = 0; i < globs.size(); ++i) {
    for (const FoundFile& file : search.files[i]) {
      if (!is_hidden(file.path, globs[i])) all.push_back(file);
    }
  }
  if (all.empty()) {
    throw DataError("every file that " + shown_path(patterns.front()) +
                        " matches has a name that begins with '_'",
                    "such files are no data; a path without wildcards reads one");
  }
  std::ranges::sort(all, {}, &FoundFile::path);
  // Of an object store: find_files() gives the others once.
  const auto again = std::ranges::unique(all, {}, &FoundFile::path);
  all.erase(again.begin(), again.end());
  return all;
}

namespace {

// Whether a name is of a table, so that the file need not be opened to say so.
bool has_table_name(const std::string& path) {
  static constexpr auto kEndings =
      std::to_array<std::string_view>({".parquet", ".arrow", ".arrows", ".feather", ".csv", ".tsv",
                                       ".jsonl", ".ndjson", ".json", ".gz", ".zst"});
  return std::ranges::any_of(kEndings, [&](std::string_view end) { return path.ends_with(end); });
}

}  // namespace

std::string identity_of(const FoundFile& file) {
  if (is_remote(file.path)) return file.path.substr(0, file.path.find('?'));
  const auto found = FileIdentity::of(file.path);
  return found ? found->file() : file.path;
}

TableSearch search_tables(std::span<const std::string> patterns, const TextFormat& format) {
  TableSearch search;
  for (FoundFile& file : find_table_files(patterns)) {
    const bool is_named = std::ranges::any_of(patterns, [&](const std::string& pattern) {
      return with_s3_scheme(pattern.substr(0, pattern.find('?', pattern.find("://")))) == file.path;
    });
    if (is_named || has_table_name(file.path) || arrow_library().is_table(file.path, format)) {
      search.files.push_back(std::move(file));
    } else {
      search.left_out.push_back(std::move(file.path));
    }
  }
  if (search.files.empty()) {
    throw DataError("no file that " + shown_path(patterns.front()) +
                        " matches is a table: " + shown_path(search.left_out.front()) + " is none",
                    "tables are Parquet, Arrow IPC, or text called *.csv, *.tsv or *.jsonl; "
                    "data.format = \"csv\" reads other names");
  }
  return search;
}

}  // namespace troika
