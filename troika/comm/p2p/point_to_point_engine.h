// An engine whose collectives are made of messages (collectives.h) over any Transport. It adds what
// a blocking algorithm lacks: operations that overlap with computation, one error that names
// operation, label and peer, and an end to everything once one thing has failed.
#pragma once

#include <troika/base/error.h>
#include <troika/comm/failure/abort_watcher.h>
#include <troika/comm/failure/snapshot_collector.h>
#include <troika/comm/group.h>
#include <troika/comm/members.h>
#include <troika/comm/p2p/collectives.h>
#include <troika/comm/p2p/transport.h>
#include <troika/comm/p2p/work_queue.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace troika {

class PointToPointEngine final : public GroupEngine {
 public:
  // `name` is a literal.
  PointToPointEngine(std::string_view name, Members members, std::unique_ptr<Transport> transport,
                     AbortStore abort_store, SnapshotCollector snapshot_collector);
  // Waits for what is under way. Then, if all went well, shuts down with the peers, so that the end
  // of the connection does not overtake the last message: for a few seconds at most.
  ~PointToPointEngine() override;

  [[nodiscard]] std::string_view name() const override { return name_; }
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) override;
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      std::span<const std::int64_t> counts, ReduceOp op, const Call& call) override;
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> counts, const Call& call) override;
  Work all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                  const at::Tensor& input, std::span<const std::int64_t> input_counts,
                  const Call& call) override;
  Work broadcast(const at::Tensor& tensor, int root, const Call& call) override;
  Work gather(const at::Tensor& output, const at::Tensor& input, int root,
              const Call& call) override;
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root,
               const Call& call) override;
  Work exchange(std::span<const Transfer> transfers, const Call& call) override;
  Work barrier(const Call& call) override;
  void abort(const std::string& reason) override;

 private:
  // An operation as its errors name it: "all_reduce 'gradients'".
  struct OperationContext {
    std::string text;
    Deadline deadline;
    OperationRecord record;
  };
  static OperationContext context_of(std::string_view operation, const Call& call);

  // Queues a collective.
  Work collective(std::string_view operation, const Call& call,
                  std::function<void(const OperationScope&)> body);
  Work add(WorkQueue& queue, const OperationContext& context, std::function<void()> body);
  [[nodiscard]] std::uint32_t next_tag(std::uint64_t signature);

  // Runs `body`; a TransportError becomes the user's error and breaks the group.
  void run(const OperationContext& context, const std::function<void()>& body);
  void throw_if_broken(const OperationContext& context);
  // What an operation of a broken group fails with; the mutex is held.
  [[nodiscard]] PeerError broken(const OperationContext& context) const;
  // The user's error for `error`, after which the group is broken.
  [[nodiscard]] std::exception_ptr error_for(const OperationContext& context,
                                             const TransportError& error);
  [[nodiscard]] std::exception_ptr late(const OperationContext& context,
                                        const TransportError& error);
  // Why `member` gave up, in this group or another, if it says so within a moment.
  [[nodiscard]] std::optional<AbortReason> await_reason(int member, Seconds waited);
  [[nodiscard]] std::exception_ptr wrong_size(const OperationContext& context,
                                              const TransportError& error);
  [[nodiscard]] std::exception_ptr lost(const OperationContext& context,
                                        const TransportError& error);
  [[nodiscard]] PeerError differ(const OperationContext& context, const SizesDiffer& error);
  [[nodiscard]] std::exception_ptr overdue(const OperationContext& context);
  // Ends everything, here and at the peers, unless that was done before.
  void fail(const AbortReason& reason);
  void shutdown() noexcept;

  std::string_view name_;
  Members members_;
  std::unique_ptr<Transport> transport_;
  AbortStore abort_store_;
  SnapshotCollector snapshot_collector_;
  Collectives collectives_;
  std::uint64_t operations_ = 0;
  std::mutex mutex_;
  std::optional<AbortReason> broken_;  // guarded by the mutex
  int exceptions_;                     // under way when this was made
  std::unique_ptr<WorkQueue> collective_queue_;
  std::unique_ptr<WorkQueue> exchange_queue_;
  std::unique_ptr<AbortWatcher> abort_watcher_;
};

}  // namespace troika
