// The flight recorders of a run, running or dead, side by side: what each rank is doing, on which
// operation they differ, and their last operations. What `troika inspect` prints.
#pragma once

#include <troika/observe/snapshot.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace troika {

struct Inspection {
  std::string folder;
  std::vector<RankSnapshot> ranks;           // in ascending order
  std::map<int, std::string> errors = {};    // by rank: the first that ended an operation of it
  std::vector<std::string> unreadable = {};  // files that could not be read
};

// Reads all flight recorders in `folder`, or in its folder "flight". Whether a process is alive is
// known for ranks of this host only. Throws DataError if there are none, or none can be read.
[[nodiscard]] Inspection inspect_run(const std::filesystem::path& folder);

// Returns one line for each axis on which ranks differ. Some have entered an operation that others
// have not, or different ones at the same place. Empty where they do not differ.
[[nodiscard]] std::vector<std::string> differences(const Inspection& inspection);

// Formats an inspection for people. `last` is the number of operations of each axis to show side by
// side.
[[nodiscard]] std::string to_text(const Inspection& inspection, int last);
[[nodiscard]] std::string to_json(const Inspection& inspection);

}  // namespace troika
