// An engine for the tensors of one kind of device, as NCCL is one for GPUs: it sends them through a
// group of the host.
#pragma once

#include <ATen/ATen.h>

#include "support/silent_engine.h"

namespace troika::test {

class ThroughGroup final : public SilentEngine {
 public:
  ThroughGroup(at::DeviceType takes, Group carrier) : takes_(takes), carrier_(std::move(carrier)) {}

  [[nodiscard]] bool accepts(at::DeviceType device) const override { return device == takes_; }
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) override {
    return run(tensor, {}, call, [&](const at::Tensor& host, const at::Tensor&) {
      return carrier_.all_reduce(host, op, {call.label, call.deadline});
    });
  }
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      std::span<const std::int64_t> counts, ReduceOp op,
                      const Call& call) override {
    return run(output, input, call, [&](const at::Tensor& to, const at::Tensor& from) {
      return carrier_.reduce_scatter(to, from, op, {call.label, call.deadline}, counts);
    });
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> counts, const Call& call) override {
    return run(output, input, call, [&](const at::Tensor& to, const at::Tensor& from) {
      return carrier_.all_gather(to, from, {call.label, call.deadline}, counts);
    });
  }
  Work broadcast(const at::Tensor& tensor, int root, const Call& call) override {
    return run(tensor, {}, call, [&](const at::Tensor& host, const at::Tensor&) {
      return carrier_.broadcast(host, root, {call.label, call.deadline});
    });
  }
  Work exchange(std::span<const Transfer> transfers, const Call& call) override {
    return carrier_.exchange(transfers, {call.label, call.deadline});
  }
  Work barrier(const Call& call) override { return carrier_.barrier({call.label, call.deadline}); }

  // The operations with tensors. Each of a device's waits for it twice: for what it sends, and for
  // what it writes.
  int calls = 0;

 private:
  // Calls `start(to, from)` with tensors of the host. Without an `input` the output is both.
  template <class Start>
  Work run(const at::Tensor& output, const at::Tensor& input, const Call& call,
           const Start& start) {
    ++calls;
    call.after.block_stream();
    if (output.is_cpu()) return start(output, input);
    const at::Tensor from = input.defined() ? input.cpu() : output.cpu();
    const at::Tensor to = input.defined() ? at::empty(output.sizes(), from.options()) : from;
    start(to, from).wait();
    output.copy_(to);
    return {};
  }

  at::DeviceType takes_;
  Group carrier_;
};

}  // namespace troika::test
