// What an exported program gives for inputs of given shapes, found without memory and without its
// values. Internal: implementation files include it.
#pragma once

#include <troika/exported/archive.h>
#include <troika/exported/program.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// Runs the program on tensors of these shapes that have no memory, and returns the shapes of its
// results. Throws UsageError naming the node that refuses them, or that cannot be run so.
[[nodiscard]] std::vector<std::vector<std::int64_t>> result_shapes(
    const Program& program, const std::vector<std::vector<std::int64_t>>& given,
    const std::string& file);

// Returns how many rows the embedding has that a given tensor, by its position among them, is
// looked up in; nothing where it is not. Ids are below that number.
[[nodiscard]] std::optional<std::int64_t> rows_looked_up(const Program& program, std::size_t given);

// Returns what errors call the first node that draws random numbers whether or not the program
// trains, as stochastic depth does once it was exported in train mode; nothing where none does.
[[nodiscard]] std::optional<std::string> draws_always(const ProgramGraph& graph);

}  // namespace troika
