#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/stack.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/exported/graph.h>
#include <troika/exported/recomputation.h>
#include <troika/ops/dropout.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace troika {
namespace {

// A number that takes the place of a tensor has no say in the type of the result.
at::Tensor wrapped_number(const at::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

double to_double(const c10::IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
}

c10::IValue in_form(c10::IValue value, OperandForm form) {
  if (form == OperandForm::kTensor && value.isScalar()) return wrapped_number(value.toScalar());
  if (form == OperandForm::kDouble && value.isInt()) return to_double(value);
  return value;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw UsageError("a size is divided by 0");
  if (b == -1) return a == std::numeric_limits<std::int64_t>::min() ? a : -a;
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

std::optional<std::int64_t> checked_subtract(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_sub_overflow(a, b, &result)) return std::nullopt;
  return result;
}

bool is_linear(const GraphNode& node) {
  return node.kind == NodeKind::kOperator && node.op->operator_name().name == "aten::linear";
}

class GraphRun {
 public:
  GraphRun(const ProgramGraph& graph, std::vector<c10::IValue> inputs, const GraphMode& mode)
      : graph_(graph), mode_(mode), values_(static_cast<std::size_t>(graph.slots)) {
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      if (graph.inputs[i] >= 0) value(graph.inputs[i]) = std::move(inputs.at(i));
    }
  }

  std::vector<c10::IValue> run() {
    for (const GraphNode& node : graph_.nodes) {
      try {
        keep(node, results_of(node));
      } catch (const c10::Error& error) {
        const std::string text = error.what_without_backtrace();
        throw UsageError(mode_.file + ": " + node.title + ": " + text.substr(0, text.find('\n')));
      }
      for (const int slot : node.last_uses) value(slot) = c10::IValue();
    }
    std::vector<c10::IValue> outputs;
    for (const Operand& each : graph_.outputs) outputs.push_back(value_of(each));
    return outputs;
  }

 private:
  c10::IValue& value(int slot) { return values_[static_cast<std::size_t>(slot)]; }

  c10::IValue tensors_of(const Operand& operand) {
    c10::List<at::Tensor> list;
    for (const Operand& each : operand.items) list.push_back(value_of(each).toTensor());
    return list;
  }
  c10::IValue optional_tensors_of(const Operand& operand) {
    c10::List<std::optional<at::Tensor>> list;
    for (const Operand& each : operand.items) {
      const c10::IValue item = value_of(each);
      list.push_back(item.isNone() ? std::optional<at::Tensor>() : item.toTensor());
    }
    return list;
  }
  c10::IValue ints_of(const Operand& operand) {
    std::vector<std::int64_t> list;
    for (const Operand& each : operand.items) list.push_back(value_of(each).toInt());
    return list;
  }
  [[nodiscard]] c10::IValue type_of(const Operand& operand) const {
    const auto type = static_cast<at::ScalarType>(operand.literal.toInt());
    const bool widens = mode_.in_double && type == at::kFloat;
    return static_cast<std::int64_t>(widens ? at::kDouble : type);
  }

  c10::IValue value_of(const Operand& operand) {
    switch (operand.kind) {
      case OperandKind::kLiteral:
        return operand.literal;
      case OperandKind::kSlot:
        return in_form(value(operand.slot), operand.form);
      case OperandKind::kTensors:
        return tensors_of(operand);
      case OperandKind::kOptionalTensors:
        return optional_tensors_of(operand);
      case OperandKind::kInts:
        return ints_of(operand);
      case OperandKind::kDevice:
        return mode_.device;
      case OperandKind::kType:
        return type_of(operand);
      case OperandKind::kTraining:
        return mode_.trains && operand.literal.toBool();
      case OperandKind::kRate:
        return mode_.trains ? operand.literal : c10::IValue(0.0);
    }
    return {};
  }

  std::vector<c10::IValue> results_of(const GraphNode& node) {
    switch (node.kind) {
      case NodeKind::kOperator:
        return call_operator(node);
      case NodeKind::kNumber:
        return {number_of(node)};
      case NodeKind::kElement:
        return {element_of(node)};
      case NodeKind::kCall:
        return call_body(node, first_argument(node.kind));
      case NodeKind::kRecomputed:  // a pair takes its tensors past the graph's inputs
        if (mode_.pairs != nullptr) return call_body(node, first_argument(node.kind));
        return run_recomputed(node, arguments_of(node, 0), mode_);
      case NodeKind::kGradMode: {
        const at::AutoGradMode records(at::GradMode::is_enabled() &&
                                       value_of(node.operands[0]).toBool());
        return call_body(node, first_argument(node.kind));
      }
      case NodeKind::kAutocast:
        return call_under_autocast(node);
    }
    return {};
  }

  std::vector<c10::IValue> call_operator(const GraphNode& node) {
    torch::jit::Stack stack;
    stack.reserve(node.operands.size());
    for (const Operand& each : node.operands) stack.push_back(value_of(each));
    if (auto dropped = dropped_by_sample(node, stack)) return {*std::move(dropped)};
    const auto pair = pair_of(node, stack);
    const at::Tensor input = pair ? stack[0].toTensor() : at::Tensor();
    node.op->callBoxed(&stack);
    if (pair) stack[0] = stack[0].toTensor() + added_by(*pair, input, node);
    return stack;
  }

  [[nodiscard]] std::optional<ProgramPair> pair_of(const GraphNode& node,
                                                   const torch::jit::Stack& stack) const {
    if (mode_.pairs == nullptr || !is_linear(node) || !stack[1].isTensor()) return std::nullopt;
    const auto found = mode_.pairs->find(stack[1].toTensor().unsafeGetTensorImpl());
    return found == mode_.pairs->end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] at::Tensor added_by(const ProgramPair& pair, const at::Tensor& input,
                                    const GraphNode& node) const {
    const at::Tensor in = dropped(node, input, mode_.trains ? pair.dropout : 0.0);
    return at::linear(at::linear(in, pair.a), pair.b) * pair.scale;
  }

  // Returns the factors of dropout, drawn by sample; nothing where it is not known which part of
  // the tensor is of which sample.
  [[nodiscard]] std::optional<at::Tensor> factors_by_sample(const GraphNode& node,
                                                            const at::Tensor& input,
                                                            double rate) const {
    if (!mode_.draws || !node.has_samples || rate <= 0 || input.dim() == 0) return std::nullopt;
    const SampleDraws& draws = *mode_.draws;
    if (input.size(0) != draws.sample_ids.numel()) return std::nullopt;
    const at::NoGradGuard no_grad;
    return ops::dropout(at::ones_like(input, at::MemoryFormat::Contiguous), draws.sample_ids, rate,
                        {stream_key(draws.seed, "dropout " + node.title), draws.step});
  }
  [[nodiscard]] at::Tensor dropped(const GraphNode& node, const at::Tensor& input,
                                   double rate) const {
    if (rate <= 0) return input;
    const auto factors = factors_by_sample(node, input, rate);
    return factors ? input * *factors : at::dropout(input, rate, /*train=*/true);
  }

  // Returns what an operator gives that drops elements, with masks that are drawn by sample;
  // nothing where it drops none, or where they cannot be.
  [[nodiscard]] std::optional<at::Tensor> dropped_by_sample(const GraphNode& node,
                                                            const torch::jit::Stack& stack) const {
    if (!mode_.draws || !node.has_samples) return std::nullopt;
    const std::string& name = node.op->schema().name();
    if (name == "aten::dropout") {
      const auto factors = stack[2].toBool()
                               ? factors_by_sample(node, stack[0].toTensor(), stack[1].toDouble())
                               : std::nullopt;
      return factors ? std::optional(stack[0].toTensor() * *factors) : std::nullopt;
    }
    if (name != "aten::scaled_dot_product_attention" || stack[4].toDouble() <= 0) {
      return std::nullopt;
    }
    return attended(node, stack);
  }

  // Computes scaled_dot_product_attention() as LibTorch does where it drops weights, in steps.
  [[nodiscard]] std::optional<at::Tensor> attended(const GraphNode& node,
                                                   const torch::jit::Stack& stack) const {
    const at::Tensor query = stack[0].toTensor();
    at::Tensor key = stack[1].toTensor(), value = stack[2].toTensor();
    if (stack[7].toBool()) {  // heads of queries share one of keys
      key = key.repeat_interleave(query.size(-3) / key.size(-3), -3);
      value = value.repeat_interleave(query.size(-3) / value.size(-3), -3);
    }
    const double scale = stack[6].isNone() ? 1 / std::sqrt(static_cast<double>(query.size(-1)))
                                           : stack[6].toScalar().toDouble();
    const double root = std::sqrt(scale);
    at::Tensor scores = at::matmul(query * root, key.transpose(-2, -1) * root);
    const double never = -std::numeric_limits<double>::infinity();
    if (stack[5].toBool()) {
      const auto kept =
          at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool)).tril();
      scores = scores.masked_fill(kept.logical_not(), never);
    }
    if (!stack[3].isNone()) {
      const at::Tensor mask = stack[3].toTensor();
      scores = mask.scalar_type() == at::kBool ? scores.masked_fill(mask.logical_not(), never)
                                               : scores + mask;
    }
    const at::Tensor weights = at::_safe_softmax(scores, -1);
    const auto factors = factors_by_sample(node, weights, stack[4].toDouble());
    if (!factors) return std::nullopt;
    return at::matmul(weights * *factors, value);
  }

  std::vector<c10::IValue> arguments_of(const GraphNode& node, std::size_t first) {
    std::vector<c10::IValue> arguments;
    for (std::size_t i = first; i < node.operands.size(); ++i) {
      arguments.push_back(value_of(node.operands[i]));
    }
    return arguments;
  }
  std::vector<c10::IValue> call_body(const GraphNode& node, std::size_t first) {
    return run_graph(*node.body, arguments_of(node, first), mode_);
  }

  // An autocast that the program turns off is off; one that it turns on is the run's to decide.
  std::vector<c10::IValue> call_under_autocast(const GraphNode& node) {
    const auto device = mode_.device.type();
    if (!at::autocast::is_autocast_available(device))
      return call_body(node, first_argument(node.kind));
    const bool was_on = at::autocast::is_autocast_enabled(device);
    const bool stays_on = was_on && value_of(node.operands[2]).toBool();
    at::autocast::set_autocast_enabled(device, stays_on);
    try {
      std::vector<c10::IValue> results = call_body(node, first_argument(node.kind));
      at::autocast::set_autocast_enabled(device, was_on);
      return results;
    } catch (...) {
      at::autocast::set_autocast_enabled(device, was_on);
      throw;
    }
  }

  c10::IValue element_of(const GraphNode& node) {
    const c10::IValue list = value_of(node.operands[0]);
    const std::int64_t index = value_of(node.operands[1]).toInt();
    const auto at = [&](std::size_t size) {
      if (index >= 0 && index < static_cast<std::int64_t>(size)) {
        return static_cast<std::size_t>(index);
      }
      throw UsageError(mode_.file + ": " + node.title + ": there is no element " +
                       std::to_string(index));
    };
    if (list.isTuple()) {
      const auto& elements = list.toTupleRef().elements();
      return elements[at(elements.size())];
    }
    const auto elements = list.toList();
    return elements.get(at(elements.size()));
  }

  c10::IValue number_of(const GraphNode& node) {
    const c10::IValue a = value_of(node.operands.at(0));
    const c10::IValue b = node.operands.size() > 1 ? value_of(node.operands[1]) : c10::IValue();
    const bool whole = a.isInt() && (b.isNone() || b.isInt());
    try {
      return whole ? number_of(node.number, a.toInt(), b.isNone() ? 0 : b.toInt())
                   : number_of(node.number, real(a), b.isNone() ? 0 : real(b));
    } catch (const UsageError& error) {
      throw UsageError(mode_.file + ": " + node.title + ": " + error.what());
    }
  }
  static double real(const c10::IValue& value) {
    return value.isBool() ? static_cast<double>(value.toBool()) : to_double(value);
  }

  static c10::IValue number_of(NumberOperator op, std::int64_t a, std::int64_t b) {
    const auto known = [](std::optional<std::int64_t> result) -> c10::IValue {
      if (!result) throw UsageError("a size is beyond 64 bits");
      return *result;
    };
    switch (op) {
      case NumberOperator::kAdd:
        return known(checked_add(a, b));
      case NumberOperator::kSubtract:
        return known(checked_subtract(a, b));
      case NumberOperator::kMultiply:
        return known(checked_mul(a, b));
      case NumberOperator::kFloorDivide:
        return floor_divide(a, b);
      case NumberOperator::kModulo:
        return a - b * floor_divide(a, b);
      case NumberOperator::kNegate:
        return known(checked_subtract(0, a));
      case NumberOperator::kMax:
        return std::max(a, b);
      case NumberOperator::kMin:
        return std::min(a, b);
      case NumberOperator::kTruncate:
        return a;
      case NumberOperator::kAnd:
        return a & b;
      case NumberOperator::kOr:
        return a | b;
      default:
        return number_of(op, static_cast<double>(a), static_cast<double>(b));
    }
  }

  static c10::IValue number_of(NumberOperator op, double a, double b) {
    switch (op) {
      case NumberOperator::kAdd:
        return a + b;
      case NumberOperator::kSubtract:
        return a - b;
      case NumberOperator::kMultiply:
        return a * b;
      case NumberOperator::kDivide:
        return a / b;
      case NumberOperator::kFloorDivide:
        return std::floor(a / b);
      case NumberOperator::kModulo:
        return a - b * std::floor(a / b);
      case NumberOperator::kNegate:
        return -a;
      case NumberOperator::kPower:
        return power(a, b);
      case NumberOperator::kMax:
        return std::max(a, b);
      case NumberOperator::kMin:
        return std::min(a, b);
      case NumberOperator::kToDouble:
        return a;
      case NumberOperator::kTruncate:
        return truncated(a);
      case NumberOperator::kNot:
        return a == 0;
      case NumberOperator::kAnd:
        return a != 0 && b != 0;
      case NumberOperator::kOr:
        return a != 0 || b != 0;
      case NumberOperator::kEqual:
        return a == b;
      case NumberOperator::kNotEqual:
        return a != b;
      case NumberOperator::kLess:
        return a < b;
      case NumberOperator::kLessEqual:
        return a <= b;
      case NumberOperator::kGreater:
        return a > b;
      case NumberOperator::kGreaterEqual:
        return a >= b;
    }
    return {};
  }
  static std::int64_t truncated(double number) {
    constexpr double kLargest = 9e18;
    if (std::abs(number) < kLargest) return static_cast<std::int64_t>(number);
    throw UsageError("a size is no number of 64 bits");
  }
  // A whole power of a whole number is one.
  static c10::IValue power(double a, double b) {
    const double result = std::pow(a, b);
    const bool is_whole = std::trunc(a) == a && std::trunc(b) == b && b >= 0;
    if (is_whole && std::abs(result) < 9e15) return static_cast<std::int64_t>(result);
    return result;
  }

  void keep(const GraphNode& node, std::vector<c10::IValue> results) {
    for (std::size_t i = 0; i < node.results.size() && i < results.size(); ++i) {
      const GraphNode::Result& result = node.results[i];
      if (!result.is_list) {
        if (result.slots[0] >= 0) value(result.slots[0]) = std::move(results[i]);
        continue;
      }
      const auto list = results[i].toList();
      if (list.size() != result.slots.size()) {
        throw UsageError(mode_.file + ": " + node.title + " gives " + std::to_string(list.size()) +
                         " tensors, and the program takes " + std::to_string(result.slots.size()));
      }
      for (std::size_t k = 0; k < list.size(); ++k) {
        if (result.slots[k] >= 0) value(result.slots[k]) = list.get(k);
      }
    }
  }

  const ProgramGraph& graph_;
  const GraphMode& mode_;
  std::vector<c10::IValue> values_;
};

}  // namespace

std::size_t first_argument(NodeKind kind) {
  if (kind == NodeKind::kAutocast) return 4;
  return kind == NodeKind::kGradMode ? 1 : 0;
}

std::vector<c10::IValue> run_graph(const ProgramGraph& graph, std::vector<c10::IValue> inputs,
                                   const GraphMode& mode) {
  return GraphRun(graph, std::move(inputs), mode).run();
}

std::set<std::size_t> linear_weights(const ProgramGraph& graph) {
  std::map<int, std::size_t> inputs;  // by slot
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) inputs.emplace(graph.inputs[i], i);
  std::set<std::size_t> weights;
  const auto add = [&](const Operand& operand) {
    const auto found = inputs.find(operand.slot);
    if (operand.kind == OperandKind::kSlot && found != inputs.end()) weights.insert(found->second);
  };
  for (const GraphNode& node : graph.nodes) {
    if (is_linear(node)) add(node.operands.at(1));
    if (!node.body) continue;
    const std::size_t first = first_argument(node.kind);
    for (const std::size_t inner : linear_weights(*node.body)) {
      add(node.operands.at(first + inner));
    }
  }
  return weights;
}

namespace {

void add_slots(const Operand& operand, std::set<int>& slots) {
  if (operand.kind == OperandKind::kSlot) slots.insert(operand.slot);
  for (const Operand& each : operand.items) add_slots(each, slots);
}

}  // namespace

std::set<std::size_t> other_operands(const ProgramGraph& graph) {
  std::set<int> slots;
  for (const Operand& each : graph.outputs) add_slots(each, slots);
  for (const GraphNode& node : graph.nodes) {
    const std::size_t first = node.body ? first_argument(node.kind) : node.operands.size();
    for (std::size_t i = 0; i < std::min(first, node.operands.size()); ++i) {
      if (!is_linear(node) || i != 1) add_slots(node.operands[i], slots);
    }
    if (!node.body) continue;
    for (const std::size_t inner : other_operands(*node.body)) {
      add_slots(node.operands.at(first + inner), slots);
    }
  }
  std::set<std::size_t> positions;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    if (slots.contains(graph.inputs[i])) positions.insert(i);
  }
  return positions;
}

at::Tensor tensor_of(const c10::IValue& value, const std::string& file) {
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor();
  throw UsageError(file + ": a result of the program is no tensor");
}

}  // namespace troika
