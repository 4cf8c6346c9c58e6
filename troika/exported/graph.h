// The graph of an exported program, as it is run: operators of LibTorch, found and checked, with
// the slots that their arguments come from and their results go to. Internal: implementation files
// include it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <troika/nn/sample_draws.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troika {

enum class OperandKind {
  kLiteral,
  kSlot,
  kTensors,          // a list of `items`, each a tensor
  kOptionalTensors,  // a list of `items`, each a tensor or nothing
  kInts,             // a list of `items`, each a whole number
  kDevice,           // the device that the program runs on
  kType,             // `literal` names the type: that of the program, which a run in fp64 widens
  kTraining,         // `literal` is whether the operator trains, where the program does
  kRate,             // `literal` is the rate of dropout, 0 in evaluation
};

// Names what the operator takes, where a slot or a literal may hold a number in another form.
enum class OperandForm { kAny, kTensor, kDouble };

struct Operand {
  OperandKind kind = OperandKind::kLiteral;
  c10::IValue literal = {};
  int slot = -1;
  std::vector<Operand> items = {};
  OperandForm form = OperandForm::kAny;
};

enum class NodeKind {
  kOperator,
  kNumber,      // arithmetic on sizes
  kElement,     // an element of a list
  kCall,        // of a graph within the graph
  kRecomputed,  // the same, run again in the backward pass
  kGradMode,    // the same, with gradients recorded or not as the first operand says
  kAutocast,    // the same, under the autocast that the first three operands describe
};

enum class NumberOperator {
  kAdd,
  kSubtract,
  kMultiply,
  kFloorDivide,
  kDivide,
  kModulo,
  kNegate,
  kPower,
  kMax,
  kMin,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kAnd,
  kOr,
  kNot,
  kToDouble,
  kTruncate,
};

struct ProgramGraph;

struct GraphNode {
  NodeKind kind = NodeKind::kOperator;
  std::optional<c10::OperatorHandle> op = {};
  NumberOperator number = NumberOperator::kAdd;
  std::shared_ptr<const ProgramGraph> body = {};
  std::vector<Operand> operands = {};  // of an operator: in the order of its schema
  // Holds the slot of a result, or those of the elements of a list. A slot below 0 is not used.
  struct Result {
    std::vector<int> slots;
    bool is_list = false;
  };
  std::vector<Result> results = {};
  std::vector<int> last_uses = {};  // slots that nothing reads after this node
  std::string title;                // "conv2d, of net.py line 12 (self.conv(x))"
  // True if the first extent of the tensor that dropout is applied to is that of the samples.
  bool has_samples = false;
  bool is_copy = false;  // what an operator gives is of another type, and so no view
  std::string module;    // the path of the module that it belongs to: "encoder.layer.0"
};

// Returns the position of the first operand that the body of a node takes.
[[nodiscard]] std::size_t first_argument(NodeKind kind);

struct ProgramGraph {
  int slots = 0;
  std::vector<int> inputs;
  std::vector<GraphNode> nodes;
  std::vector<Operand> outputs;
};

// A pair of LoRA beside a weight of the program: to x W^T it adds scale * dropout(x) A^T B^T.
struct ProgramPair {
  at::Tensor a, b;
  double scale = 1;
  double dropout = 0;
};

// The pairs of a program, by the tensors of their weights.
using ProgramPairs = std::map<const c10::TensorImpl*, ProgramPair>;

// Says how a graph is run.
struct GraphMode {
  bool trains = true;
  bool in_double = false;  // in fp64 where the program was written in fp32
  at::Device device = at::kCPU;
  std::string file = {};  // what errors name
  const ProgramPairs* pairs = nullptr;
  std::optional<SampleDraws> draws = {};  // what masks of dropout are drawn by, where it is known
};

// Runs the graph on values of its inputs, and returns those of its outputs. Operators are called
// through LibTorch's dispatcher, so autograd and autocast see them as if Python called. A value is
// let go after its last use. Throws UsageError naming the node whose operator throws.
[[nodiscard]] std::vector<c10::IValue> run_graph(const ProgramGraph& graph,
                                                 std::vector<c10::IValue> inputs,
                                                 const GraphMode& mode);

// Returns the positions of a graph's inputs that a linear operator takes as its weight, ascending,
// those of graphs within it included.
[[nodiscard]] std::set<std::size_t> linear_weights(const ProgramGraph& graph);
// Returns the positions of the inputs that anything else reads: another operator, another argument
// of a linear one, a result of the graph.
[[nodiscard]] std::set<std::size_t> other_operands(const ProgramGraph& graph);

// Returns the tensor of a value. Throws UsageError naming `file` where it is none.
[[nodiscard]] at::Tensor tensor_of(const c10::IValue& value, const std::string& file);

}  // namespace troika
