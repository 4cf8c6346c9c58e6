// Internal. Turns autograd's hooks on parameters into backward passes: one begins with the first
// gradient that autograd adds up, and ends when autograd has nothing left to do. One that ends in
// an exception is noticed, and aborted, when the next one begins.
#pragma once

#include <troika/parallel/data_parallel/gradient_slot.h>

#include <cstddef>
#include <span>
#include <vector>

namespace troika::detail {

class BackwardHooks {
 public:
  // Receives the events of a pass, in the thread that runs backward(). Exceptions leave through
  // backward().
  class Listener {
   public:
    virtual ~Listener() = default;
    // Checks whether a pass may begin. If it throws, there is no pass.
    virtual void validate_pass() = 0;
    // Handles a graph that differs in size from that of the pass before. If it throws, there is no
    // pass.
    virtual void on_new_graph() = 0;
    virtual void begin_pass() = 0;
    virtual void gradient_ready(std::size_t slot) = 0;
    // Completes the pass, once all gradients are there. If it throws, the pass is aborted later on.
    virtual void complete_pass() = 0;
    virtual void end_pass() = 0;
    virtual void abort_pass() = 0;
  };

  // Takes the parameters of `slots`, which no other hooks may have. `listener` must outlive this.
  BackwardHooks(std::span<const GradientSlot> slots, Listener& listener);
  ~BackwardHooks() { remove(); }
  BackwardHooks(const BackwardHooks&) = delete;
  BackwardHooks& operator=(const BackwardHooks&) = delete;

  // Removes the hooks from the parameters.
  void remove();
  // Aborts the pass that has not ended, if there is one.
  void abort_open_pass();

 private:
  class Hook;
  void on_gradient(std::size_t slot);
  void begin_pass(int task);
  void end_pass();

  Listener& listener_;
  std::vector<at::Tensor> parameters_;  // that have hooks
  bool in_pass_ = false;
  int task_ = -1;               // autograd's number of the pass
  std::size_t graph_size_ = 0;  // of the last one
};

}  // namespace troika::detail
