// Finds the ranks that disagree, and on what, in the words that the user reads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Returns "1, 3 and 7", or "1 to 15" for four and more in a row.
[[nodiscard]] std::string list_ranks(const std::vector<int>& ranks);

// Returns the first line in which two recipes differ, with its table: "train.steps is 10 on rank 0
// and 20 on rank 1" for texts that are "on rank 0" and "on rank 1". Empty for equal texts.
[[nodiscard]] std::string first_difference(std::string_view ours, std::string_view theirs,
                                           const std::string& where_ours,
                                           const std::string& where_theirs);

}  // namespace troika
