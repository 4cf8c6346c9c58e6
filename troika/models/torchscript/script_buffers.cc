#include <ATen/ATen.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/models/torchscript/script_buffers.h>
#include <troika/param/shape_text.h>

#include <set>
#include <utility>

namespace troika {
namespace {

// A class of TorchScript, and one of its attributes.
using Attribute = std::pair<const c10::Type*, std::string>;

void find_assignments(torch::jit::Block* block, std::set<Attribute>& found) {
  for (torch::jit::Node* node : block->nodes()) {
    if (node->kind() == c10::prim::SetAttr) {
      found.emplace(node->input(0)->type().get(), node->s(c10::attr::name));
    }
    for (torch::jit::Block* inner : node->blocks()) find_assignments(inner, found);
  }
}

std::set<Attribute> assignments_of(const torch::jit::Module& module) {
  std::set<Attribute> found;
  std::set<const c10::Type*> known;
  for (const torch::jit::Module& each : module.modules()) {
    if (!known.insert(each.type().get()).second) continue;
    for (torch::jit::Function* method : each.type()->methods()) {
      auto* graph = torch::jit::tryToGraphFunction(*method);
      if (graph != nullptr) find_assignments(graph->graph()->block(), found);
    }
  }
  return found;
}

}  // namespace

AssignedBuffers::AssignedBuffers(const torch::jit::Module& module) {
  const std::set<Attribute> assigned = assignments_of(module);
  if (assigned.empty()) return;
  for (const auto& child : module.named_modules()) {
    const c10::ClassTypePtr type = child.value.type();
    for (std::size_t index = 0; index < type->numAttributes(); ++index) {
      const std::string& name = type->getAttributeName(index);
      const c10::IValue value = child.value._ivalue()->getSlot(index);
      if (!value.isTensor() || !assigned.contains({type.get(), name})) continue;
      slots_.push_back({child.name.empty() ? name : child.name + "." + name, child.value._ivalue(),
                        index, value.toTensor()});
    }
  }
}

void AssignedBuffers::lend() {
  const at::NoGradGuard no_grad;
  for (const Slot& each : slots_) each.object->setSlot(each.index, each.tensor.clone());
}

void AssignedBuffers::take_back() {
  const at::NoGradGuard no_grad;
  std::vector<c10::IValue> values;
  for (const Slot& each : slots_) {  // all are back before one of them is refused
    values.push_back(each.object->getSlot(each.index));
    each.object->setSlot(each.index, each.tensor);
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& each = slots_[i];
    if (!values[i].isTensor()) {
      throw UsageError("forward() assigns no tensor to buffer " + quote(each.name, 200),
                       "a buffer that is kept is a tensor in every pass");
    }
    const at::Tensor value = values[i].toTensor();
    if (value.sizes() != each.tensor.sizes()) {
      throw UsageError("forward() assigns " + shape_text(value.sizes()) + " to buffer " +
                           quote(each.name, 200) + ", which is " + shape_text(each.tensor.sizes()),
                       "a buffer that is kept has the same shape in every pass");
    }
    each.tensor.copy_(value);
  }
}

}  // namespace troika
