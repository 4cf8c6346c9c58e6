#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <troika/models/torchscript/script_effects.h>

#include <memory>

namespace troika {
namespace {

bool has_gradient_operator(torch::jit::Block* block) {
  static const c10::Symbol kGrad = c10::Symbol::fromQualString("aten::grad");
  static const c10::Symbol kBackward = c10::Symbol::fromQualString("aten::backward");
  for (torch::jit::Node* node : block->nodes()) {
    if (node->kind() == kGrad || node->kind() == kBackward) return true;
    for (torch::jit::Block* inner : node->blocks()) {
      if (has_gradient_operator(inner)) return true;
    }
  }
  return false;
}

// Puts a copy of each tensor before the graph, and returns the copies; null where an input is no
// tensor. Alias analysis lets every input alias every buffer of the module, which batch-norm writes
// to; a copy aliases only what forward() makes of it.
std::vector<torch::jit::Value*> copied_inputs(torch::jit::Graph& graph) {
  std::vector<torch::jit::Value*> copies;
  const torch::jit::WithInsertPoint first(*graph.nodes().begin());
  for (std::size_t i = 1; i < graph.inputs().size(); ++i) {  // the module itself is the first
    torch::jit::Value* const input = graph.inputs()[i];
    if (!input->type()->isSubtypeOf(*c10::TensorType::get())) {
      copies.push_back(nullptr);
      continue;
    }
    torch::jit::Value* const copy =
        graph.insert(c10::Symbol::fromQualString("aten::clone"), {input});
    input->replaceAllUsesAfterNodeWith(copy->node(), copy);
    copies.push_back(copy);
  }
  return copies;
}

}  // namespace

ScriptEffects::ScriptEffects(const torch::jit::Module& module) {
  const auto forward = module.find_method("forward");
  auto* function = forward ? torch::jit::tryToGraphFunction(forward->function()) : nullptr;
  if (function == nullptr) return;
  const std::shared_ptr<torch::jit::Graph> graph = function->graph()->copy();
  torch::jit::Inline(*graph);
  differentiates_ = has_gradient_operator(graph->block());
  const std::vector<torch::jit::Value*> inputs = copied_inputs(*graph);
  try {
    const torch::jit::AliasDb aliases(graph);
    for (const torch::jit::Value* each : inputs) {
      writes_.push_back(each != nullptr && aliases.hasWriters(each));
    }
  } catch (const c10::Error&) {  // an operator that alias analysis does not know
    writes_.clear();
    writes_to_others_ = true;
  }
}

}  // namespace troika
