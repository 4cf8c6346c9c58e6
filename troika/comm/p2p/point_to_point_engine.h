// An engine whose collectives are made of messages (collectives.h) over any Transport. It finds out
// what has become of a peer whose messages do not come.
#pragma once

#include <troika/comm/blocking_engine.h>
#include <troika/comm/p2p/collectives.h>
#include <troika/comm/p2p/transport.h>

#include <memory>

namespace troika {

class PointToPointEngine final : public BlockingEngine {
 public:
  PointToPointEngine(std::string name, Members members, std::unique_ptr<Transport> transport,
                     AbortStore abort_store, SnapshotCollector snapshot_collector);
  // Waits for operations under way. Then, if all went well, shuts down with the peers, for a few
  // seconds at most. So the end of the connection does not overtake the last message.
  ~PointToPointEngine() override;

  Work exchange(std::span<const Transfer> transfers, const Call& call) override;

 private:
  void run_all_reduce(const at::Tensor& tensor, ReduceOp op,
                      const OperationContext& context) override;
  void run_reduce_scatter(const at::Tensor& output, const at::Tensor& input, Counts counts,
                          ReduceOp op, const OperationContext& context) override;
  void run_all_gather(const at::Tensor& output, const at::Tensor& input, Counts counts,
                      const OperationContext& context) override;
  void run_all_to_all(const at::Tensor& output, Counts output_counts, const at::Tensor& input,
                      Counts input_counts, const OperationContext& context) override;
  void run_broadcast(const at::Tensor& tensor, int root, const OperationContext& context) override;
  void run_gather(const at::Tensor& output, const at::Tensor& input, int root,
                  const OperationContext& context) override;
  void run_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                   const OperationContext& context) override;
  void run_barrier(const OperationContext& context) override;

  // Returns the scope that the messages of the next collective carry.
  [[nodiscard]] OperationScope next_scope(const OperationContext& context);

  void translate(const OperationContext& context) override;
  void break_connections(const Failure& reason) override;
  [[nodiscard]] std::exception_ptr error_for(const OperationContext& context,
                                             const TransportError& error);
  [[nodiscard]] std::exception_ptr lost(const OperationContext& context,
                                        const TransportError& error);
  void shutdown() noexcept;

  std::unique_ptr<Transport> transport_;
  Collectives collectives_;
  std::uint64_t operations_ = 0;
  int exceptions_;  // under way when this was made
};

}  // namespace troika
