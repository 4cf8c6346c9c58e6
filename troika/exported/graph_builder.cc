#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/exported/aliases.h>
#include <troika/exported/arguments.h>
#include <troika/exported/graph_builder.h>
#include <troika/exported/node_title.h>
#include <troika/exported/operators.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace troika {
namespace {

constexpr std::string_view kAten = "torch.ops.aten.", kHigher = "torch.ops.higher_order.";

class GraphBuilder {
 public:
  // `samples` is the text of the extent of the samples; "" where the graph's inputs say it.
  GraphBuilder(const schema::Graph& graph, const std::string& file, int depth, std::string samples)
      : source_(graph),
        file_(file),
        depth_(depth),
        graph_(std::make_shared<ProgramGraph>()),
        samples_(std::move(samples)) {
    for (const schema::Argument& each : source_.get_inputs()) {
      if (samples_.empty()) samples_ = first_extent(name_of_value(each));
    }
  }

  std::shared_ptr<const ProgramGraph> build() {
    for (const schema::Argument& each : source_.get_inputs()) {
      const std::string name = name_of_value(each);
      graph_->inputs.push_back(name.empty() ? -1 : slot_for(name));
    }
    for (const schema::Node& each : source_.get_nodes()) add(each);
    for (const schema::Argument& each : source_.get_outputs()) {
      graph_->outputs.push_back(operand_of(each));
    }
    find_last_uses();
    return graph_;
  }

 private:
  using Tag = schema::Argument::Tag;

  [[noreturn]] void fail(const std::string& what, const std::string& hint = "") const {
    throw UsageError(file_ + ": " + (current_.empty() ? "" : current_ + ": ") + what, hint);
  }

  int slot_for(const std::string& name) {
    if (!slots_.emplace(name, graph_->slots).second) fail("two values are called " + quote(name));
    return graph_->slots++;
  }
  [[nodiscard]] Operand slot(const std::string& name) const {
    const auto found = slots_.find(name);
    if (found == slots_.end()) fail("no value is called " + quote(name, 100));
    Operand operand;
    operand.kind = OperandKind::kSlot;
    operand.slot = found->second;
    return operand;
  }
  static Operand literal(c10::IValue value) {
    Operand operand;
    operand.literal = std::move(value);
    return operand;
  }
  static Operand list(OperandKind kind, std::vector<Operand> items) {
    Operand operand;
    operand.kind = kind;
    operand.items = std::move(items);
    return operand;
  }

  [[nodiscard]] Operand number(const schema::SymIntArgument& argument) const {
    return argument.tag() == schema::SymIntArgument::Tag::AS_NAME ? slot(argument.get_as_name())
                                                                  : literal(argument.get_as_int());
  }
  [[nodiscard]] Operand type(schema::ScalarType named) const {
    const auto type = schema::type_of(named);
    if (!type) fail("a type of numbers that is not known here");
    Operand operand = literal(static_cast<std::int64_t>(*type));
    operand.kind = OperandKind::kType;
    return operand;
  }
  [[nodiscard]] Operand device() const {
    Operand operand;
    operand.kind = OperandKind::kDevice;
    return operand;
  }

  [[nodiscard]] Operand operand_of(const schema::Argument& argument) const {
    switch (argument.tag()) {
      case Tag::AS_NONE:
        return {};
      case Tag::AS_TENSOR:
        return slot(argument.get_as_tensor().get_name());
      case Tag::AS_OPTIONAL_TENSOR:
        return optional(argument.get_as_optional_tensor());
      case Tag::AS_INT:
        return literal(argument.get_as_int());
      case Tag::AS_FLOAT:
        return literal(argument.get_as_float().get());
      case Tag::AS_STRING:
        return literal(argument.get_as_string());
      case Tag::AS_BOOL:
        return literal(argument.get_as_bool());
      case Tag::AS_SCALAR_TYPE:
        return type(argument.get_as_scalar_type());
      case Tag::AS_MEMORY_FORMAT: {
        const auto format = schema::memory_format_of(argument.get_as_memory_format());
        return format ? literal(static_cast<std::int64_t>(*format)) : Operand();
      }
      case Tag::AS_LAYOUT:
        if (argument.get_as_layout() != schema::Layout::Strided) fail("a layout that is not dense");
        return literal(static_cast<std::int64_t>(at::kStrided));
      case Tag::AS_DEVICE:
        return device();
      case Tag::AS_SYM_INT:
        return number(argument.get_as_sym_int());
      case Tag::AS_SYM_FLOAT: {
        const auto& value = argument.get_as_sym_float();
        return value.tag() == schema::SymFloatArgument::Tag::AS_NAME
                   ? slot(value.get_as_name())
                   : literal(value.get_as_float().get());
      }
      case Tag::AS_SYM_BOOL: {
        const auto& value = argument.get_as_sym_bool();
        return value.tag() == schema::SymBoolArgument::Tag::AS_NAME ? slot(value.get_as_name())
                                                                    : literal(value.get_as_bool());
      }
      default:
        return list_of(argument);
    }
  }

  [[nodiscard]] Operand list_of(const schema::Argument& argument) const {
    switch (argument.tag()) {
      case Tag::AS_TENSORS: {
        std::vector<Operand> items;
        for (const auto& each : argument.get_as_tensors()) items.push_back(slot(each.get_name()));
        return list(OperandKind::kTensors, std::move(items));
      }
      case Tag::AS_OPTIONAL_TENSORS: {
        std::vector<Operand> items;
        for (const auto& each : argument.get_as_optional_tensors()) items.push_back(optional(each));
        return list(OperandKind::kOptionalTensors, std::move(items));
      }
      case Tag::AS_INTS:
        return literal(argument.get_as_ints());
      case Tag::AS_FLOATS: {
        std::vector<double> numbers;
        for (const auto& each : argument.get_as_floats()) numbers.push_back(each.get());
        return literal(numbers);
      }
      case Tag::AS_BOOLS: {
        c10::List<bool> bools;
        for (const bool each : argument.get_as_bools()) bools.push_back(each);
        return literal(bools);
      }
      case Tag::AS_SYM_INTS: {
        std::vector<Operand> items;
        for (const auto& each : argument.get_as_sym_ints()) items.push_back(number(each));
        return list(OperandKind::kInts, std::move(items));
      }
      default:
        fail("an argument of a kind that is not known here",
             "custom objects, and lists of lists, are not run");
    }
  }
  [[nodiscard]] Operand optional(const schema::OptionalTensorArgument& argument) const {
    if (argument.tag() == schema::OptionalTensorArgument::Tag::AS_NONE) return {};
    return slot(argument.get_as_tensor().get_name());
  }

  void add(const schema::Node& node) {
    current_ = title_of(node);
    const std::string& target = node.get_target();
    if (target.starts_with(kAten)) {
      add_operator(node, target.substr(kAten.size()));
    } else if (target.starts_with(kHigher)) {
      add_call(node, target.substr(kHigher.size()));
    } else if (const auto found = number_operator(target)) {
      GraphNode& made = new_node(node, NodeKind::kNumber);
      made.number = *found;
      for (const auto& each : node.get_inputs())
        made.operands.push_back(operand_of(each.get_arg()));
      if (made.operands.empty() || made.operands.size() > 2) fail(target + " takes two numbers");
      take_results(node, made);
    } else if (target == "_operator.getitem") {
      GraphNode& made = new_node(node, NodeKind::kElement);
      for (const auto& each : node.get_inputs())
        made.operands.push_back(operand_of(each.get_arg()));
      if (made.operands.size() != 2) fail("an element of a list takes the list and a number");
      take_results(node, made);
    } else {
      refuse_target(target);
    }
    current_.clear();
  }

  [[noreturn]] void refuse_target(const std::string& target) const {
    fail("calls " + quote(target, 100) + ", which is not among the operators that run here",
         "operators of LibTorch that compute on their arguments do: write the line with them");
  }

  GraphNode& new_node(const schema::Node& node, NodeKind kind) {
    GraphNode& made = graph_->nodes.emplace_back();
    made.kind = kind;
    made.title = current_;
    made.module = module_of(node);
    return made;
  }

  // "conv2d.default" is conv2d, "add.Tensor" the overload Tensor of add.
  void add_operator(const schema::Node& node, const std::string& target) {
    const std::size_t dot = target.rfind('.');
    if (dot == std::string::npos) refuse_target(node.get_target());
    const std::string name = target.substr(0, dot);
    std::string overload = target.substr(dot + 1);
    if (overload == "default") overload.clear();
    if (is_assertion(name)) return;
    const bool resizes = overload == "out" || overload.ends_with("_out");
    if (!is_allowed_operator(name) || resizes) refuse_target(node.get_target());
    auto op = c10::Dispatcher::singleton().findSchema({"aten::" + name, overload});
    if (!op) fail("calls " + quote(node.get_target(), 100) + ", which this LibTorch does not have");
    GraphNode& made = new_node(node, NodeKind::kOperator);
    made.op = *op;
    take_arguments(node, made, op->schema());
    made.has_samples = is_of_samples(node);
    made.is_copy = changes_type(node);
    take_results(node, made);
  }

  // Returns the text of a value's first extent; "" where it is none, or a number.
  [[nodiscard]] std::string first_extent(const std::string& name) const {
    const auto found = source_.get_tensor_values().find(name);
    if (found == source_.get_tensor_values().end() || found->second.get_sizes().empty()) return "";
    const schema::SymInt& first = found->second.get_sizes()[0];
    if (first.tag() != schema::SymInt::Tag::AS_EXPR) return "";
    return first.get_as_expr().get_expr_str();
  }
  // Returns whether the first extent of the operator's first argument is that of the samples.
  [[nodiscard]] bool is_of_samples(const schema::Node& node) const {
    if (samples_.empty() || node.get_inputs().empty()) return false;
    return first_extent(name_of_value(node.get_inputs()[0].get_arg())) == samples_;
  }

  void take_arguments(const schema::Node& node, GraphNode& made,
                      const c10::FunctionSchema& schema) {
    std::map<std::string, const schema::Argument*> given;
    for (const auto& each : node.get_inputs()) given[each.get_name()] = &each.get_arg();
    is_norm_ = std::ranges::any_of(schema.arguments(), [](const c10::Argument& each) {
      return each.name() == "momentum" || each.name() == "running_mean";
    });
    const auto mean = given.find("running_mean");
    has_running_statistics_ = mean != given.end() && mean->second->tag() != Tag::AS_NONE;
    const bool makes_tensor = std::ranges::none_of(schema.arguments(), [](const auto& each) {
      return each.type()->kind() == c10::TypeKind::TensorType;
    });
    for (const c10::Argument& argument : schema.arguments()) {
      const auto found = given.find(argument.name());
      if (found == given.end() && !argument.default_value() && !is_optional(argument)) {
        fail("has no argument " + quote(argument.name()));
      }
      Operand operand = found == given.end()
                            ? literal(argument.default_value().value_or(c10::IValue()))
                            : operand_of(*found->second);
      if (found != given.end()) given.erase(found);
      made.operands.push_back(
          adapted(std::move(operand), argument, makes_tensor ? &node : nullptr));
      const std::string fault = fault_of_enumeration(made.operands.back(), argument);
      if (!fault.empty()) fail(fault);
    }
    if (given.empty()) return;
    fail("has an argument " + quote(given.begin()->first, 100) + ", which the operator has not");
  }

  // A norm without running statistics takes those of the batch in evaluation, too.
  [[nodiscard]] bool follows_mode(const std::string& argument) const {
    if (switches_training(argument)) return !is_norm_ || has_running_statistics_;
    return argument == "use_input_stats" && has_running_statistics_;
  }

  static bool is_optional(const c10::Argument& argument) {
    return argument.type()->kind() == c10::TypeKind::OptionalType;
  }
  // `maker` is the node where it makes a tensor of no other one.
  Operand adapted(Operand operand, const c10::Argument& argument, const schema::Node* maker) const {
    const bool is_literal = operand.kind == OperandKind::kLiteral;
    if (is_literal && operand.literal.isBool() && follows_mode(argument.name())) {
      operand.kind = OperandKind::kTraining;
      return operand;
    }
    if (is_literal && argument.name() == "dropout_p") {
      operand.kind = OperandKind::kRate;
      if (operand.literal.isInt()) {
        operand.literal = static_cast<double>(operand.literal.toInt());
      }
      return operand;
    }
    if (is_literal && operand.literal.isNone() && maker != nullptr) {
      if (argument.name() == "device") return device();
      if (argument.name() == "dtype" && makes_floats(*maker))
        return type(schema::ScalarType::FLOAT);
    }
    switch (kind_of_argument(argument)) {
      case c10::TypeKind::TensorType:
        operand.form = OperandForm::kTensor;
        if (is_literal && operand.literal.isScalar()) operand = wrapped(operand);
        break;
      case c10::TypeKind::FloatType:
        operand.form = OperandForm::kDouble;
        if (is_literal && operand.literal.isInt()) {
          operand.literal = static_cast<double>(operand.literal.toInt());
        }
        break;
      case c10::TypeKind::ListType:
        if (is_literal) operand.literal = list_of_type(std::move(operand.literal), argument);
        break;
      default:
        break;
    }
    return operand;
  }
  bool makes_floats(const schema::Node& node) const {
    if (node.get_outputs().size() != 1) return false;
    const std::string name = name_of_value(node.get_outputs()[0]);
    const auto found = source_.get_tensor_values().find(name);
    return found != source_.get_tensor_values().end() &&
           found->second.get_dtype() == schema::ScalarType::FLOAT;
  }

  void take_results(const schema::Node& node, GraphNode& made) {
    for (const schema::Argument& each : node.get_outputs()) {
      GraphNode::Result& result = made.results.emplace_back();
      if (each.tag() == Tag::AS_TENSORS) {
        result.is_list = true;
        for (const auto& tensor : each.get_as_tensors()) {
          result.slots.push_back(slot_for(tensor.get_name()));
        }
        continue;
      }
      const std::string name = name_of_value(each);
      result.slots.push_back(name.empty() ? -1 : slot_for(name));
    }
  }

  // A graph within the graph: the names of its arguments do not matter.
  void add_call(const schema::Node& node, const std::string& name) {
    GraphNode& made = new_node(node, kind_of_call(node, name));
    const schema::Graph* body = nullptr;
    for (const auto& each : node.get_inputs()) {
      if (each.get_arg().tag() == Tag::AS_GRAPH) {
        if (body != nullptr) fail("calls two graphs");
        body = &*each.get_arg().get_as_graph().get_graph();
      } else if (body == nullptr ||
                 made.operands.size() < first_argument(made.kind) + body->get_inputs().size()) {
        made.operands.push_back(operand_of(each.get_arg()));  // others are of the checkpoint
      }
    }
    if (body == nullptr) fail("calls no graph");
    if (made.operands.size() != first_argument(made.kind) + body->get_inputs().size()) {
      fail("calls a graph with other arguments than it takes");
    }
    constexpr int kDeepest = 32;
    if (depth_ >= kDeepest) fail("graphs are nested too deeply");
    made.body = GraphBuilder(*body, file_, depth_ + 1, samples_).build();
    const bool recomputes = made.kind == NodeKind::kRecomputed;
    if (recomputes && !aliases_of(*made.body).written.empty()) made.kind = NodeKind::kCall;
    for (const schema::Argument& each : node.get_outputs()) take_call_result(each, made);
    if (made.results.size() > made.body->outputs.size()) fail("returns less than is taken of it");
  }
  void take_call_result(const schema::Argument& argument, GraphNode& made) {
    if (argument.tag() != Tag::AS_TENSORS) {
      const std::string name = name_of_value(argument);
      made.results.push_back({{name.empty() ? -1 : slot_for(name)}, false});
      return;
    }
    for (const auto& each : argument.get_as_tensors()) {
      made.results.push_back({{slot_for(each.get_name())}, false});
    }
  }
  [[nodiscard]] NodeKind kind_of_call(const schema::Node& node, const std::string& name) const {
    if (name == "wrap_with_set_grad_enabled") return NodeKind::kGradMode;
    if (name == "wrap_with_autocast") return NodeKind::kAutocast;
    if (name == "tag_activation_checkpoint" || name == "wrap_activation_checkpoint") {
      return NodeKind::kRecomputed;
    }
    refuse_target(node.get_target());
  }
  // Returns whether an operator gives a tensor of another type than it takes, which is a copy, as
  // x.float() where x has bytes.
  [[nodiscard]] bool changes_type(const schema::Node& node) const {
    if (node.get_inputs().empty() || node.get_outputs().size() != 1) return false;
    const auto& values = source_.get_tensor_values();
    const auto own = values.find(name_of_value(node.get_inputs()[0].get_arg()));
    const auto other = values.find(name_of_value(node.get_outputs()[0]));
    return own != values.end() && other != values.end() &&
           own->second.get_dtype() != other->second.get_dtype();
  }

  void find_last_uses() {
    std::vector<bool> is_used(static_cast<std::size_t>(graph_->slots), false);
    const auto visit = [&](const Operand& operand, auto&& self, std::vector<int>* last) -> void {
      if (operand.kind == OperandKind::kSlot && !is_used[static_cast<std::size_t>(operand.slot)]) {
        is_used[static_cast<std::size_t>(operand.slot)] = true;
        if (last != nullptr) last->push_back(operand.slot);
      }
      for (const Operand& each : operand.items) self(each, self, last);
    };
    for (const Operand& each : graph_->outputs) visit(each, visit, nullptr);
    for (auto node = graph_->nodes.rbegin(); node != graph_->nodes.rend(); ++node) {
      for (GraphNode::Result& result : node->results) {
        for (int& slot : result.slots) {  // nothing reads it
          if (slot >= 0 && !is_used[static_cast<std::size_t>(slot)]) slot = -1;
        }
      }
      for (const Operand& each : node->operands) visit(each, visit, &node->last_uses);
    }
  }

  const schema::Graph& source_;
  const std::string& file_;
  int depth_;
  std::string current_;                                    // the node, as errors call it
  bool is_norm_ = false, has_running_statistics_ = false;  // of the node
  std::shared_ptr<ProgramGraph> graph_;
  std::string samples_;  // the text of the extent of the samples
  std::map<std::string, int> slots_;
};

}  // namespace

BuiltGraph build_graph(const schema::Graph& graph, const std::string& file) {
  BuiltGraph built{GraphBuilder(graph, file, 0, "").build(), {}};
  for (const std::size_t input : aliases_of(*built.graph).written) {
    built.written.insert(name_of_value(graph.get_inputs()[input]));
  }
  return built;
}

}  // namespace troika
