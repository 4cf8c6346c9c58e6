// Reads Slurm's compact notations.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Returns the first host of a list such as "n[1-3,7],gpu05" or "rack[01-02]-n[1-4]": "n1",
// "rack01-n1". Throws UsageError naming `variable` when the list is malformed.
[[nodiscard]] std::string first_host(std::string_view list, std::string_view variable);

// Returns the tasks of the node at `index` in "2(x3),1": 2 for 0 to 2, 1 for 3. Nothing when the
// list has no such node. Throws UsageError naming `variable` when the list is malformed.
[[nodiscard]] std::optional<int> tasks_of_node(std::string_view list, int index,
                                               std::string_view variable);

}  // namespace troika
