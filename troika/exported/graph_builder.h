// Makes a graph that can be run of a graph of the schema. Internal to this folder.
#pragma once

#include <troika/exported/graph.h>
#include <troika/exported/schema.h>

#include <memory>
#include <set>
#include <string>

namespace troika {

struct BuiltGraph {
  std::shared_ptr<const ProgramGraph> graph;
  std::set<std::string> written;  // inputs, by name, that an operator writes to
};

// Finds the operators, checks that they are allowed, and gives each value a slot. Throws UsageError
// naming `file`, the node and its line of Python.
[[nodiscard]] BuiltGraph build_graph(const schema::Graph& graph, const std::string& file);

}  // namespace troika
