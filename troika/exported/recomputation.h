// Parts of an exported program whose activations are computed again in the backward pass. Internal:
// implementation files include it.
#pragma once

#include <troika/exported/graph.h>

#include <memory>
#include <string>
#include <vector>

namespace troika {

// Returns the graph with the nodes of each module whose path fits one of the shell patterns as one
// node of kind kRecomputed; the outermost module counts, and calls of one module that follow each
// other are one. Nodes that write to a tensor of others, such as a running mean, stay as they are,
// between two such nodes. Throws UsageError naming `file` and a pattern that fits no module, or
// leaves nothing to run again.
[[nodiscard]] std::shared_ptr<const ProgramGraph> with_recomputation(
    const std::shared_ptr<const ProgramGraph>& graph, const std::vector<std::string>& patterns,
    const std::string& file);

// Runs the body of a node of kind kRecomputed, and keeps its inputs alone for the backward pass,
// which runs it again with the same draws of random numbers (Chen et al. 2016, "Training Deep Nets
// with Sublinear Memory Cost"). Throws UsageError where it writes to its inputs, and from a
// backward pass that records gradients itself.
[[nodiscard]] std::vector<c10::IValue> run_recomputed(const GraphNode& node,
                                                      std::vector<c10::IValue> inputs,
                                                      const GraphMode& mode);

}  // namespace troika
