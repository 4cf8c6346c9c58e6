#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/ivalue.h>
#include <fnmatch.h>
#include <torch/autograd.h>
#include <torch/custom_class.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/exported/aliases.h>
#include <troika/exported/recomputation.h>
#include <troika/nn/random_draws.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace troika {
namespace {

// Calls `act` with each operand that is a slot, also in lists.
template <class Operands, class Act>
void for_each_slot(Operands& operands, const Act& act) {
  for (auto& each : operands) {
    if (each.kind == OperandKind::kSlot) act(each);
    for_each_slot(each.items, act);
  }
}

// Makes consecutive nodes a graph of their own.
class Segment {
 public:
  Segment(std::vector<GraphNode> nodes, std::string module)
      : body_(std::make_shared<ProgramGraph>()) {
    node_.kind = NodeKind::kRecomputed;
    node_.title = "module " + quote(module, 200);
    node_.module = std::move(module);
    std::set<int> is_used_up;
    for (GraphNode& each : nodes) {
      for_each_slot(each.operands, [&](Operand& operand) { operand.slot = taken(operand.slot); });
      for (GraphNode::Result& result : each.results) {
        for (int& slot : result.slots) slot = slot < 0 ? slot : made(slot);
      }
      for (int& slot : each.last_uses) {
        is_used_up.insert(slot);
        if (!made_.contains(slot)) node_.last_uses.push_back(slot);
        slot = inner_.at(slot);
      }
      body_->nodes.push_back(std::move(each));
    }
    for (const auto& [outer, inner] : made_) {
      if (is_used_up.contains(outer)) continue;
      body_->outputs.push_back(slot_operand(inner));
      node_.results.push_back({{outer}, false});
    }
    body_->slots = static_cast<int>(inner_.size());
    node_.body = body_;
  }

  [[nodiscard]] GraphNode take() && { return std::move(node_); }

 private:
  static Operand slot_operand(int slot) {
    Operand operand;
    operand.kind = OperandKind::kSlot;
    operand.slot = slot;
    return operand;
  }
  int taken(int outer) {
    const auto [found, is_new] = inner_.emplace(outer, static_cast<int>(inner_.size()));
    if (is_new) {
      body_->inputs.push_back(found->second);
      node_.operands.push_back(slot_operand(outer));
    }
    return found->second;
  }
  int made(int outer) {
    const int inner = static_cast<int>(inner_.size());
    inner_[outer] = made_[outer] = inner;
    return inner;
  }

  std::shared_ptr<ProgramGraph> body_;
  GraphNode node_;
  std::map<int, int> inner_, made_;  // slots of the segment's graph, by those of the whole
};

// Returns the outermost module of a path that fits a pattern; "" where none does.
std::string fitting_module(const std::string& path, const std::string& pattern) {
  for (std::size_t end = path.find('.');; end = path.find('.', end + 1)) {
    std::string module = path.substr(0, end);
    if (::fnmatch(pattern.c_str(), module.c_str(), 0) == 0) return module;
    if (end == std::string::npos) return "";
  }
}

// What is kept of a segment between its two runs; its tensors are saved by autograd.
struct Kept final : torch::CustomClassHolder {
  Kept(const GraphNode& node, std::vector<c10::IValue> values, GraphMode how)
      : graph(node.body), title(node.title), inputs(std::move(values)), mode(std::move(how)) {
    const auto device = mode.device.type();
    has_autocast =
        at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
    if (has_autocast) type = at::autocast::get_autocast_dtype(device);
    draws = detail::generator_states(mode.device);
  }

  [[nodiscard]] std::vector<c10::IValue> with(const std::vector<at::Tensor>& tensors) const {
    std::vector<c10::IValue> values = inputs;
    for (std::size_t i = 0; i < places.size(); ++i) values[places[i]] = tensors[i];
    return values;
  }

  std::shared_ptr<const ProgramGraph> graph;
  std::string title;                  // of its node
  std::vector<c10::IValue> inputs;    // without its tensors
  std::vector<std::size_t> places;    // of tensors among them
  std::vector<c10::IValue> outputs;   // without tensors
  std::vector<std::size_t> returned;  // places of tensors among them
  GraphMode mode;
  bool has_autocast = false;
  at::ScalarType type = at::kFloat;
  std::vector<at::Tensor> draws;
};

// Sets the autocast of the first run, without its cache: a cast that is kept while no gradients are
// recorded would have none later.
class AutocastOf {
 public:
  explicit AutocastOf(const Kept& kept)
      : device_(kept.mode.device.type()),
        is_available_(at::autocast::is_autocast_available(device_)) {
    if (!is_available_) return;
    was_on_ = at::autocast::is_autocast_enabled(device_);
    was_cached_ = at::autocast::is_autocast_cache_enabled();
    before_ = at::autocast::get_autocast_dtype(device_);
    at::autocast::set_autocast_enabled(device_, kept.has_autocast);
    at::autocast::set_autocast_cache_enabled(false);
    if (kept.has_autocast) at::autocast::set_autocast_dtype(device_, kept.type);
  }
  ~AutocastOf() {
    if (!is_available_) return;
    at::autocast::set_autocast_enabled(device_, was_on_);
    at::autocast::set_autocast_cache_enabled(was_cached_);
    at::autocast::set_autocast_dtype(device_, before_);
  }
  AutocastOf(const AutocastOf&) = delete;
  AutocastOf& operator=(const AutocastOf&) = delete;

 private:
  at::DeviceType device_;
  bool is_available_, was_on_ = false, was_cached_ = true;
  at::ScalarType before_ = at::kFloat;
};

std::vector<std::uint64_t> versions_of(at::TensorList tensors) {
  std::vector<std::uint64_t> versions;
  for (const at::Tensor& each : tensors) {
    versions.push_back(each.is_inference() ? 0 : static_cast<std::uint64_t>(each._version()));
  }
  return versions;
}

class Recomputed final : public torch::autograd::Function<Recomputed> {
 public:
  static std::vector<at::Tensor> forward(torch::autograd::AutogradContext* context,
                                         const c10::intrusive_ptr<Kept>& kept,
                                         at::TensorList tensors) {
    context->save_for_backward(tensors.vec());
    context->saved_data["kept"] = c10::IValue::make_capsule(kept);
    context->set_materialize_grads(false);
    const AutocastOf autocast(*kept);
    const std::vector<std::uint64_t> versions = versions_of(tensors);
    kept->outputs = run_graph(*kept->graph, kept->with(tensors.vec()), kept->mode);
    if (versions != versions_of(tensors)) {
      throw UsageError(
          kept->mode.file + ": " + kept->title + " writes to a tensor that it is given",
          "it cannot be run again: leave it out of checkpoint_modules");
    }
    std::vector<at::Tensor> outputs;
    for (std::size_t i = 0; i < kept->outputs.size(); ++i) {
      if (!kept->outputs[i].isTensor()) continue;
      const at::Tensor output = std::exchange(kept->outputs[i], {}).toTensor();
      // A view that a function of autograd returns could not be written to.
      outputs.push_back(output.detach());
      kept->returned.push_back(i);
    }
    return outputs;
  }

  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context,
                                          const std::vector<at::Tensor>& gradients) {
    const auto capsule = context->saved_data["kept"].toCapsule();
    const auto& kept = static_cast<const Kept&>(*capsule);
    if (at::GradMode::is_enabled()) {
      throw UsageError(kept.mode.file + ": " + kept.title + " has no second derivatives",
                       "leave it out of checkpoint_modules");
    }
    std::vector<at::Tensor> inputs, wanted;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
      if (saved.requires_grad()) wanted.push_back(inputs.back());
    }
    std::vector<at::Tensor> outputs, given;
    {
      const at::AutoGradMode records(true);
      const AutocastOf autocast(kept);
      const detail::EarlierDraws draws(kept.mode.device, kept.draws);
      const auto all = run_graph(*kept.graph, kept.with(inputs), kept.mode);
      for (std::size_t i = 0; i < kept.returned.size(); ++i) {
        const at::Tensor output = all[kept.returned[i]].toTensor();
        if (!output.requires_grad() || !gradients[i].defined()) continue;
        outputs.push_back(output);
        given.push_back(gradients[i]);
      }
    }
    std::vector<at::Tensor> found(wanted.size());
    if (!outputs.empty()) {
      found = torch::autograd::grad(outputs, wanted, given, /*retain_graph=*/false,
                                    /*create_graph=*/false, /*allow_unused=*/true);
    }
    std::vector<at::Tensor> all(1);  // the first argument of forward() has none
    std::size_t next = 0;
    for (const at::Tensor& input : inputs) {
      all.push_back(input.requires_grad() ? found[next++] : at::Tensor());
    }
    return all;
  }
};

// Makes segments of the modules that patterns name.
class Cut {
 public:
  Cut(const ProgramGraph& graph, const std::vector<std::string>& patterns, const std::string& file)
      : graph_(graph), patterns_(patterns), made_(std::make_shared<ProgramGraph>(graph)) {
    made_->nodes.clear();
    for (auto first = graph.nodes.begin(); first != graph.nodes.end();) {
      const std::string owner = owner_of(*first);
      auto end = first + 1;
      while (!owner.empty() && end != graph.nodes.end() && owner_of(*end) == owner) ++end;
      if (owner.empty()) {
        made_->nodes.push_back(*first);
      } else {
        add({first, end}, owner);
      }
      first = end;
    }
    for (const std::string& pattern : patterns) {
      if (!fitting_.contains(pattern)) refuse_unknown(pattern, file);
      if (cut_.contains(pattern)) continue;
      throw UsageError(file + ": each node of the modules " + quote(pattern, 200) +
                           " writes to a tensor of others, or returns one",
                       "they cannot be run again: leave them out of checkpoint_modules");
    }
  }
  [[nodiscard]] std::shared_ptr<const ProgramGraph> made() const { return made_; }

 private:
  // Returns the outermost module of the node that fits a pattern; "" where none does.
  std::string owner_of(const GraphNode& node) {
    std::string outermost;
    for (const std::string& pattern : patterns_) {
      const std::string module = fitting_module(node.module, pattern);
      if (module.empty()) continue;
      fitting_.insert(pattern);
      if (outermost.empty() || module.size() < outermost.size()) outermost = module;
    }
    return outermost;
  }

  // Adds the nodes of a module as segments, between the nodes that write to a tensor of others.
  void add(std::vector<GraphNode> nodes, const std::string& owner) {
    const auto writers = aliases_of(*Segment(nodes, owner).take().body).writers;
    std::vector<GraphNode> part;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!writers.contains(i)) {
        part.push_back(std::move(nodes[i]));
        continue;
      }
      add_part(std::exchange(part, {}), owner);
      made_->nodes.push_back(std::move(nodes[i]));
    }
    add_part(std::move(part), owner);
  }
  // The nodes of a part stay as they are where it writes to what another part has made, or returns
  // a view of what it takes, which others may write to.
  void add_part(std::vector<GraphNode> nodes, const std::string& owner) {
    if (nodes.empty()) return;
    GraphNode segment = Segment(nodes, owner).take();
    const GraphAliases aliases = aliases_of(*segment.body);
    const bool gives_views =
        std::ranges::any_of(aliases.views_of, [](const auto& each) { return !each.empty(); });
    if (aliases.written.empty() && !gives_views) {
      made_->nodes.push_back(std::move(segment));
      for (const std::string& pattern : patterns_) {
        if (fits_one_of(nodes, pattern)) cut_.insert(pattern);
      }
      return;
    }
    for (GraphNode& node : nodes) made_->nodes.push_back(std::move(node));
  }
  static bool fits_one_of(const std::vector<GraphNode>& nodes, const std::string& pattern) {
    return std::ranges::any_of(nodes, [&](const GraphNode& node) {
      return !fitting_module(node.module, pattern).empty();
    });
  }

  [[noreturn]] void refuse_unknown(const std::string& pattern, const std::string& file) const {
    std::set<std::string> modules;
    for (const GraphNode& node : graph_.nodes) modules.insert(node.module);
    modules.erase("");
    constexpr std::size_t kShown = 40;
    std::vector<std::string> shown(modules.begin(), modules.end());
    if (shown.size() > kShown) shown.resize(kShown);
    throw UsageError(file + " has no module " + quote(pattern, 200),
                     "it has " + join(shown, ", ") + (modules.size() > kShown ? ", ..." : ""));
  }

  const ProgramGraph& graph_;
  const std::vector<std::string>& patterns_;
  std::set<std::string> fitting_, cut_;  // patterns that fit a module, and of which a part is cut
  std::shared_ptr<ProgramGraph> made_;
};

}  // namespace

std::shared_ptr<const ProgramGraph> with_recomputation(
    const std::shared_ptr<const ProgramGraph>& graph, const std::vector<std::string>& patterns,
    const std::string& file) {
  if (patterns.empty()) return graph;
  return Cut(*graph, patterns, file).made();
}

std::vector<c10::IValue> run_recomputed(const GraphNode& node, std::vector<c10::IValue> inputs,
                                        const GraphMode& mode) {
  if (!mode.trains || !at::GradMode::is_enabled()) {
    return run_graph(*node.body, std::move(inputs), mode);
  }
  auto kept = c10::make_intrusive<Kept>(node, std::move(inputs), mode);
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < kept->inputs.size(); ++i) {
    if (!kept->inputs[i].isTensor()) continue;
    tensors.push_back(std::exchange(kept->inputs[i], {}).toTensor());
    kept->places.push_back(i);
  }
  const std::vector<at::Tensor> returned = Recomputed::apply(kept, at::TensorList(tensors));
  std::vector<c10::IValue> outputs = std::exchange(kept->outputs, {});
  for (std::size_t i = 0; i < returned.size(); ++i) outputs[kept->returned[i]] = returned[i];
  return outputs;
}

}  // namespace troika
