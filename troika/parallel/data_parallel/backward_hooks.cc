#include <troika/parallel/data_parallel/backward_hooks.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace troika::detail {

// Called by autograd when a gradient has been added to the parameter's.
class BackwardHooks::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(BackwardHooks& hooks, std::size_t slot) : hooks_(hooks), slot_(slot) {}
  void operator()(const torch::autograd::Variable&) override { hooks_.on_gradient(slot_); }

 private:
  BackwardHooks& hooks_;
  std::size_t slot_;
};

BackwardHooks::BackwardHooks(std::span<const GradientSlot> slots, Listener& listener)
    : listener_(listener) {
  for (const GradientSlot& slot : slots) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        slot.parameter, std::make_unique<Hook>(*this, parameters_.size()));
    parameters_.push_back(slot.parameter);
  }
}

void BackwardHooks::remove() {
  for (const at::Tensor& parameter : parameters_) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
  parameters_.clear();
}

void BackwardHooks::on_gradient(std::size_t slot) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (!in_pass_ || task != task_) begin_pass(task);
  listener_.gradient_ready(slot);
}

void BackwardHooks::begin_pass(int task) {
  abort_open_pass();
  listener_.validate_pass();
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes != nullptr && nodes->size() != graph_size_) {
    listener_.on_new_graph();
    graph_size_ = nodes->size();
  }
  torch::autograd::Engine::get_default_engine().queue_callback([this] { end_pass(); });
  in_pass_ = true;
  task_ = task;
  listener_.begin_pass();
}

void BackwardHooks::end_pass() {
  listener_.complete_pass();
  in_pass_ = false;
  listener_.end_pass();
}

// What the pass has started must end before it is used again.
void BackwardHooks::abort_open_pass() {
  if (!in_pass_) return;
  in_pass_ = false;
  listener_.abort_pass();
}

}  // namespace troika::detail
