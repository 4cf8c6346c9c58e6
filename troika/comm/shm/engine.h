// The engine shm: collectives between the ranks of one host, over shared memory. Small operations,
// in one step, are announced by the caller's thread when they start. The thread that waits for them
// finishes them. In the others members wait for what each of them does halfway. Where no caller
// waits they go on in a thread of their own (work_queue.h), after what can be done at once.
#pragma once

#include <troika/comm/engine_base.h>
#include <troika/comm/shm/collective.h>
#include <troika/comm/shm/mailbox.h>
#include <troika/comm/shm/segments.h>

#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troika::shm {

class Engine final : public EngineBase {
 public:
  Engine(Members members, Attached attached, const Shape& shape, ShmGroup::Backoff backoff);
  // Finishes the operations under way.
  ~Engine() override;

  [[nodiscard]] bool writes_entries() const override { return true; }
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
  [[nodiscard]] at::Tensor allocate(std::size_t bytes) override;

 private:
  class Pending;
  template <class Finish>
  class Operation;
  class SmallExchange;
  static constexpr std::size_t kUnbounded = std::numeric_limits<std::size_t>::max();
  // The bytes from which on the change to another thread, and back, does not count.
  static constexpr std::size_t kWorthAThread = std::size_t{1} << 20;
  // The bytes of an operation, as one member gives them.
  struct Amount {
    // The most bytes that any member contributes; the same on all members. kUnbounded: not known,
    // or they go window by window.
    std::size_t at_once;
    std::size_t moved;  // about; by this member
  };
  // Starts an operation. `finish(Collective&, Deadline)` takes what the operation is for from the
  // others' contributions. Where all contributions are in slots, each member needs only that the
  // others enter, so the thread that waits may finish it. Else each waits for what the others do in
  // the middle of it, which a background thread has to do. What the operation can do before that,
  // finish.early(Collective&, Deadline) does in the call, where it is not much. `use` says whether
  // a contribution that fits only into a large slot stays in memory for all, if it lies there.
  enum class Use { kLargeSlots, kInPlace };
  template <class Finish>
  Work start(std::string_view operation, const Call& call, const at::Tensor& contribution,
             Amount amount, Finish finish, Use use = Use::kLargeSlots);
  // Returns whether announcing an operation may take until others have done something. The caller's
  // thread then does not announce it: the others may act only after the caller has come to
  // something else.
  [[nodiscard]] bool announcing_waits(std::uint64_t number, Placement placement);
  void announce(Collective& collective, const OperationContext& context);
  // Queues a job after all others. A caller that soon waits for a short one saves the change of
  // thread.
  Work enqueue_last(WorkQueue::Job job, const OwnedContext& context);

  // An operation that all have entered ends well even if a peer has left since.
  void translate(const OperationContext& context) override;
  void break_connections(const Failure& reason) override { group_.abort(encode(reason)); }
  void await_writers() override { group_.close(); }
  // All members hear of a failure through shared memory.
  [[nodiscard]] std::optional<Failure> listen(const OperationContext& context, int member,
                                              Seconds timeout) override;
  // Throws the user's error for an operation that a peer has broken.
  [[noreturn]] void throw_peer_error(const OperationContext& context, const Broken& error);
  [[nodiscard]] Diagnosis examine_mismatch(const OperationContext& context, const Mismatch& error);
  [[nodiscard]] std::string describe_exit(int member);
  static void wait_ignoring_errors(Pending& pending);
  void finish_exchange(const OperationContext& context,
                       const std::shared_ptr<Mailbox::Batch>& batch);
  void watch();

  std::vector<std::optional<PeerConnection>> connections_;
  ShmGroup group_;
  std::shared_ptr<Segments> segments_;
  FindSegment find_;
  Mailbox mailbox_;
  std::uint64_t operations_ = 0;
  // The operations to finish, in order. Each is finished, at the latest, by later ones that wait
  // for it.
  std::deque<std::shared_ptr<Pending>> pending_;
  std::vector<std::shared_ptr<Pending>> pending_exchanges_;
  Work last_queued_;
  Work last_to_announce_;  // of those that are announced there
  UniqueFd stop_watching_;
  std::thread watcher_;
};

}  // namespace troika::shm
