// Parts of an exported program whose activations are computed again in the backward pass. Internal:
// implementation files include it.
#pragma once

#include <troika/exported/graph.h>

#include <memory>
#include <string>
#include <vector>

namespace troika {

// Returns the graph with the nodes of each module whose path fits one of the shell patterns as one
// node of kind kRecomputed; the outermost module counts. Nodes that write to a tensor of others,
// such as a running mean, stay as they are. Throws UsageError naming `file` and a pattern that fits
// no module.
[[nodiscard]] std::shared_ptr<const ProgramGraph> with_recomputation(
    const std::shared_ptr<const ProgramGraph>& graph, const std::vector<std::string>& patterns,
    const std::string& file);

// Returns whether a graph writes to one of its inputs, so that it cannot run twice.
[[nodiscard]] bool writes_inputs(const ProgramGraph& graph);

// Runs a graph, and keeps its inputs alone for the backward pass, which runs it again with the same
// draws of random numbers (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
[[nodiscard]] std::vector<c10::IValue> run_recomputed(
    const std::shared_ptr<const ProgramGraph>& graph, std::vector<c10::IValue> inputs,
    const GraphMode& mode);

}  // namespace troika
