// An exported program: what torch.export.save() has written, checked and made ready to run. Read
// without its weights, which ExportArchive::tensor() takes. Internal: implementation files include
// it.
#pragma once

#include <troika/exported/archive.h>
#include <troika/exported/graph.h>
#include <troika/exported/tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// Describes what a slot of the graph's inputs takes.
struct ProgramInput {
  enum class Kind { kParameter, kBuffer, kConstant, kGiven, kLiteral };
  Kind kind = Kind::kLiteral;
  std::string name;           // of a parameter, a buffer or a constant: dotted
  bool is_persistent = true;  // of a buffer: saved with the parameters
  StoredTensor stored;        // of the three
  ExportedTensor given;       // what a caller gives
  c10::IValue literal;        // a value that it was exported with
  bool is_written = false;    // a buffer that the program changes
};

struct Program {
  std::shared_ptr<const ProgramGraph> graph;
  std::vector<ProgramInput> inputs;  // of the graph, in its order
  // Describes what the graph returns: a result, or the new value of a buffer.
  struct Output {
    std::optional<ExportedTensor> result;
    std::optional<std::size_t> buffer;  // a position in `inputs`
  };
  std::vector<Output> outputs;

  // Return what a caller gives and gets.
  [[nodiscard]] std::vector<ExportedTensor> given() const;
  [[nodiscard]] std::vector<ExportedTensor> results() const;
};

// Reads the program of the archive. Throws UsageError naming the file, and the node with its line
// of Python, where the file is damaged, has an operator that is not allowed, or does what cannot be
// trained.
[[nodiscard]] Program read_program(const ExportArchive& archive);

}  // namespace troika
