#include <troika/exported/aliases.h>

#include <map>
#include <string>

namespace troika {
namespace {

using Roots = std::set<std::size_t>;

// Returns whether an operator moves the running statistics that it takes, which its schema does not
// say.
bool moves_statistics(const GraphNode& node) {
  const c10::FunctionSchema& schema = node.op->schema();
  if (schema.name() != "aten::batch_norm" && schema.name() != "aten::instance_norm") return false;
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool says = arguments[i].name() == "training" || arguments[i].name() == "use_input_stats";
    if (says && node.operands[i].literal.isBool()) return node.operands[i].literal.toBool();
  }
  return true;
}

// Returns whether an operator may return what it takes, or a view of it, and its schema does not
// say so.
bool may_return_argument(const std::string& name) {
  static const std::set<std::string> kNames = {"aten::dropout",
                                               "aten::feature_dropout",
                                               "aten::alpha_dropout",
                                               "aten::einsum",
                                               "aten::feature_alpha_dropout",
                                               "aten::native_dropout",
                                               "aten::type_as",
                                               "aten::broadcast_tensors",
                                               "aten::meshgrid",
                                               "aten::atleast_1d",
                                               "aten::atleast_2d",
                                               "aten::atleast_3d",
                                               "aten::sum_to_size",
                                               "aten::channel_shuffle",
                                               "aten::cartesian_prod"};
  return kNames.contains(name);
}

class Following {
 public:
  explicit Following(const ProgramGraph& graph) {
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      if (graph.inputs[i] >= 0) roots_[graph.inputs[i]] = {i};
    }
    for (; node_ < graph.nodes.size(); ++node_) follow(graph.nodes[node_]);
    for (const Operand& each : graph.outputs) found_.views_of.push_back(roots_of(each));
  }
  [[nodiscard]] GraphAliases take() && { return std::move(found_); }

 private:
  void follow(const GraphNode& node) {
    if (node.body) {
      follow_call(node);
    } else if (node.op) {
      follow_operator(node, node.op->schema());
    } else if (node.kind == NodeKind::kElement) {
      give(node, 0, roots_of(node.operands[0]));
    }
  }

  void follow_call(const GraphNode& node) {
    const GraphAliases inner = aliases_of(*node.body);
    const std::size_t first = first_argument(node.kind);
    for (const std::size_t position : inner.written) {
      write(roots_of(node.operands.at(first + position)));
    }
    for (std::size_t i = 0; i < node.results.size() && i < inner.views_of.size(); ++i) {
      for (const std::size_t position : inner.views_of[i]) {
        give(node, i, roots_of(node.operands.at(first + position)));
      }
    }
  }

  void follow_operator(const GraphNode& node, const c10::FunctionSchema& schema) {
    const bool is_silent = may_return_argument(schema.name());
    const bool moves = moves_statistics(node);
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      const Roots roots = roots_of(node.operands[i]);
      const auto* alias = argument.alias_info();
      if (moves && argument.name().starts_with("running_")) write(roots);
      if (alias != nullptr && alias->isWrite()) write(roots);
      if ((alias == nullptr && !is_silent) || node.is_copy) continue;
      for (std::size_t result = 0; result < node.results.size(); ++result) {
        give(node, result, roots);
      }
    }
  }

  void write(const Roots& roots) {
    if (!roots.empty()) found_.writers.insert(node_);
    found_.written.insert(roots.begin(), roots.end());
  }
  void give(const GraphNode& node, std::size_t result, const Roots& roots) {
    for (const int slot : node.results.at(result).slots) {
      if (slot >= 0) roots_[slot].insert(roots.begin(), roots.end());
    }
  }
  [[nodiscard]] Roots roots_of(const Operand& operand) const {
    Roots roots;
    const auto found = roots_.find(operand.slot);
    if (operand.kind == OperandKind::kSlot && found != roots_.end()) roots = found->second;
    for (const Operand& each : operand.items) roots.merge(roots_of(each));
    return roots;
  }

  std::size_t node_ = 0;        // that is followed
  std::map<int, Roots> roots_;  // by slot
  GraphAliases found_;
};

}  // namespace

GraphAliases aliases_of(const ProgramGraph& graph) {
  return Following(graph).take();
}

}  // namespace troika
