// What a graph's operators write to, and what its outputs may share memory with. Internal to this
// folder.
#pragma once

#include <troika/exported/graph.h>

#include <cstddef>
#include <set>
#include <vector>

namespace troika {

struct GraphAliases {
  std::set<std::size_t> written;  // positions of inputs that an operator writes to
  std::set<std::size_t> writers;  // positions of the nodes that do
  // Hold, for each output, the positions of the inputs that it may be a view of.
  std::vector<std::set<std::size_t>> views_of;
};

// Follows what each operator says of its arguments in its schema, through graphs within the graph.
[[nodiscard]] GraphAliases aliases_of(const ProgramGraph& graph);

}  // namespace troika
