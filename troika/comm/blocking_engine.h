// An engine whose collectives block: it gives the bodies, and each runs in the queue, in the order
// of the calls, while its caller goes on.
#pragma once

#include <troika/comm/engine_base.h>

#include <cstdint>
#include <functional>
#include <span>

namespace troika {

class BlockingEngine : public EngineBase {
 public:
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) final;
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      std::span<const std::int64_t> counts, ReduceOp op, const Call& call) final;
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> counts, const Call& call) final;
  Work all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                  const at::Tensor& input, std::span<const std::int64_t> input_counts,
                  const Call& call) final;
  Work broadcast(const at::Tensor& tensor, int root, const Call& call) final;
  Work gather(const at::Tensor& output, const at::Tensor& input, int root, const Call& call) final;
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root, const Call& call) final;
  Work barrier(const Call& call) final;

 protected:
  using Counts = std::span<const std::int64_t>;
  using EngineBase::EngineBase;

  // Queues `body` as an operation of this name, a literal.
  using Body = std::function<void(const OperationContext& context)>;
  Work collective(std::string_view operation, const Call& call, Body body);

 private:
  // Run the operation to its end, with the arguments of GroupEngine. One runs at a time, in the
  // order of the calls, in any thread.
  virtual void run_all_reduce(const at::Tensor& tensor, ReduceOp op,
                              const OperationContext& context) = 0;
  virtual void run_reduce_scatter(const at::Tensor& output, const at::Tensor& input, Counts counts,
                                  ReduceOp op, const OperationContext& context) = 0;
  virtual void run_all_gather(const at::Tensor& output, const at::Tensor& input, Counts counts,
                              const OperationContext& context) = 0;
  virtual void run_all_to_all(const at::Tensor& output, Counts output_counts,
                              const at::Tensor& input, Counts input_counts,
                              const OperationContext& context) = 0;
  virtual void run_broadcast(const at::Tensor& tensor, int root,
                             const OperationContext& context) = 0;
  virtual void run_gather(const at::Tensor& output, const at::Tensor& input, int root,
                          const OperationContext& context) = 0;
  virtual void run_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                           const OperationContext& context) = 0;
  virtual void run_barrier(const OperationContext& context) = 0;
  // Returns the deadline of a body whose caller has `deadline`. It is later where bodies take
  // several steps.
  [[nodiscard]] virtual Deadline end_of(const Deadline& deadline) const { return deadline; }
};

}  // namespace troika
