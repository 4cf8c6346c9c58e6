// Internal: the data files of object stores that globs name.
#pragma once

#include <troika/data/find_files.h>

#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Returns the part of a glob before the names that have wildcards; all of one without wildcards. A
// '?' begins the options of a store, which are no part of it, so globs there have '*' and '[...]'.
[[nodiscard]] std::string_view prefix_before_wildcards(std::string_view glob);

// Finds the files that a URL or glob names, in order of their names; without wildcards it may be a
// folder, which stands for all files below. Leaves out empty files, and names that begin with a dot
// and are matched by a wildcard. There is at least one. Throws DataError naming what matches
// nothing, with what the store says; StorageError where the store cannot be reached.
[[nodiscard]] std::vector<FoundFile> find_remote(const std::string& written);

}  // namespace troika
