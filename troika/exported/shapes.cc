#include <ATen/ATen.h>
#include <troika/exported/shapes.h>

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
    if (program.outputs[i].result) shapes.push_back(returned[i].toTensor().sizes().vec());
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
  for (const GraphNode& node : graph.nodes) {
    if (!node.op || node.op->schema().name() != "aten::embedding") continue;
    const ProgramInput *table = input_at(node.operands[0]), *ids = input_at(node.operands[1]);
    if (table == nullptr || ids == nullptr || ids->kind != ProgramInput::Kind::kGiven) continue;
    if (ids->name == name && !table->stored.sizes.empty()) return table->stored.sizes[0];
  }
  return std::nullopt;
}

}  // namespace troika
