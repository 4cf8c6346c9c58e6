#include <ATen/ATen.h>
#include <troika/exported/shapes.h>

#include <algorithm>

namespace troika {

std::vector<std::vector<std::int64_t>> result_shapes(
    const Program& program, const std::vector<std::vector<std::int64_t>>& given,
    const std::string& file) {
  const at::NoGradGuard no_grad;
  std::vector<c10::IValue> inputs;
  std::size_t position = 0;
  for (const ProgramInput& each : program.inputs) {
    if (each.kind == ProgramInput::Kind::kLiteral) {
      inputs.emplace_back();
      continue;
    }
    const bool is_given = each.kind == ProgramInput::Kind::kGiven;
    const auto& sizes = is_given ? given.at(position++) : each.stored.sizes;
    const auto type = is_given ? each.given.type : each.stored.type;
    inputs.emplace_back(at::empty(sizes, at::TensorOptions(type).device(at::kMeta)));
  }
  const GraphMode mode{.trains = false, .in_double = false, .device = at::kMeta, .file = file};
  const std::vector<c10::IValue> returned = run_graph(*program.graph, std::move(inputs), mode);
  std::vector<std::vector<std::int64_t>> shapes;
  for (std::size_t i = 0; i < returned.size(); ++i) {
    if (program.outputs[i].result) shapes.push_back(tensor_of(returned[i], file).sizes().vec());
  }
  return shapes;
}

std::optional<std::int64_t> rows_looked_up(const Program& program, std::size_t given) {
  const ProgramGraph& graph = *program.graph;
  const auto input_at = [&](const Operand& operand) -> const ProgramInput* {
    if (operand.kind != OperandKind::kSlot) return nullptr;
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      if (graph.inputs[i] == operand.slot) return &program.inputs[i];
    }
    return nullptr;
  };
  const std::string name = program.given().at(given).name;
  std::optional<std::int64_t> rows;
  for (const GraphNode& node : graph.nodes) {
    if (!node.op || node.op->schema().name() != "aten::embedding") continue;
    const ProgramInput *table = input_at(node.operands[0]), *ids = input_at(node.operands[1]);
    if (table == nullptr || ids == nullptr || ids->kind != ProgramInput::Kind::kGiven) continue;
    if (ids->name != name || table->stored.sizes.empty()) continue;
    const std::int64_t own = table->stored.sizes[0];
    rows = rows ? std::min(*rows, own) : own;
  }
  return rows;
}

std::optional<std::string> draws_always(const ProgramGraph& graph) {
  for (const GraphNode& node : graph.nodes) {
    if (node.body) {
      if (auto found = draws_always(*node.body)) return found;
    }
    if (!node.op || !node.op->hasTag(at::Tag::nondeterministic_seeded)) continue;
    const bool follows_mode = std::ranges::any_of(node.operands, [](const Operand& each) {
      return each.kind == OperandKind::kTraining || each.kind == OperandKind::kRate;
    });
    if (!follows_mode) return node.title;
  }
  return std::nullopt;
}

}  // namespace troika
