// The engine shm: collectives between the ranks of one host, over shared memory. Small operations,
// in one step, are announced by the caller's thread when they start and finished by whoever waits
// for them. In the others members wait for what each of them does halfway, so they go on in a
// thread of their own where no caller waits (work_queue.h), after what can be done at once.
#pragma once

#include <troika/base/function_ref.h>
#include <troika/base/text.h>
#include <troika/comm/failure/diagnosis.h>
#include <troika/comm/failure/snapshot_collector.h>
#include <troika/comm/group.h>
#include <troika/comm/members.h>
#include <troika/comm/p2p/work_queue.h>
#include <troika/comm/shm/collective.h>
#include <troika/comm/shm/mailbox.h>
#include <troika/comm/shm/segments.h>

#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace troika::shm {

class Engine final : public GroupEngine {
 public:
  Engine(Members members, Attached attached, const Shape& shape, ShmGroup::Backoff backoff);
  // Finishes what is under way.
  ~Engine() override;

  [[nodiscard]] std::string_view name() const override { return "shm"; }
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
  void abort(const std::string& reason) override;
  [[nodiscard]] at::Tensor allocate(std::size_t bytes) override;

 private:
  class Pending;
  template <class Finish>
  class Operation;
  class SmallExchange;
  // What an operation is, in errors and to the others.
  struct OperationContext {
    std::string_view operation;  // a literal
    std::string_view label;
    Deadline deadline;
    OperationRecord record;
    // "all_reduce 'loss'"
    [[nodiscard]] std::string text() const { return std::string(operation) + " " + quote(label); }
  };
  static OperationContext context_of(std::string_view operation, const Call& call) {
    return {operation, call.label, call.deadline, call.record};
  }
  // For an operation that outlives the call: its label is the caller's.
  class OwnedContext {
   public:
    explicit OwnedContext(const OperationContext& context)
        : label_(context.label), context_(context) {}
    [[nodiscard]] OperationContext get() const {
      return {context_.operation, label_, context_.deadline, context_.record};
    }

   private:
    std::string label_;
    OperationContext context_;
  };

  static constexpr std::size_t kUnbounded = std::numeric_limits<std::size_t>::max();
  // From so many bytes on the change to another thread, and back, does not count.
  static constexpr std::size_t kWorthAThread = std::size_t{1} << 20;
  // Of one member.
  struct Amount {
    // The most that any contributes; kUnbounded: not known, or they go window by window. The same
    // at all members.
    std::size_t at_once;
    std::size_t moved;  // about; by this member
  };
  // Starts an operation. Where all contributions are in slots, each member needs nothing of the
  // others but that they enter, so that whoever waits for it may finish it; else each waits for
  // what the others do in the middle of it, which somebody has to do in the background; what it can
  // do before that, finish.early(Collective&, Deadline) does in the call where it is not much.
  // `use`: whether what fits into a large slot only stays in memory for all, if it lies there.
  // `finish` takes what the operation is for from the others' contributions: finish(Collective&,
  // Deadline).
  enum class Use { kLargeSlots, kInPlace };
  template <class Finish>
  Work start(std::string_view operation, const Call& call, const at::Tensor& contribution,
             Amount amount, Finish finish, Use use = Use::kLargeSlots);
  // Whether to announce an operation may take until others have done something: then the caller
  // does not, since they may get round to that only after the caller has come to something else.
  [[nodiscard]] bool announcing_waits(std::uint64_t number, Placement placement);
  void announce(Collective& collective, const OperationContext& context);
  // Of short ones, whoever waits for them before long saves the change of thread.
  Work enqueue(WorkQueue::Job job, const OwnedContext& name);
  // Runs `body` and turns what it throws into the user's error, after which the group is broken. An
  // operation that all have entered ends well even if a peer has left since.
  void run(const OperationContext& context, FunctionRef<void()> body);
  [[nodiscard]] std::exception_ptr overdue(const OperationContext& context);
  // "all_reduce 'gradients' on axis data".
  [[nodiscard]] std::string describe(const OperationContext& context) const;
  // Gives others a moment to say why they aborted, and throws PeerError if they do: this group's
  // members, and `held_up` also in another group.
  void await_reason(const OperationContext& context, int held_up);
  [[noreturn]] void throw_abort_reason(const OperationContext& context, int member,
                                       const AbortReason& reason);
  // Throws what the user is told of an operation that is late, or that a peer has broken.
  [[noreturn]] void throw_deadline_error(const OperationContext& context,
                                         const std::vector<int>& missing);
  [[noreturn]] void throw_peer_error(const OperationContext& context, const Broken& error);
  // What holds the operation up.
  [[nodiscard]] Diagnosis examine(const OperationContext& context, std::vector<int> suspects);
  [[nodiscard]] Diagnosis examine_mismatch(const OperationContext& context, const Mismatch& error);
  [[nodiscard]] std::string describe_exit(int member);
  // Breaks the group; the tensors of this member are left alone from then on.
  void fail(const AbortReason& reason);
  static void wait_ignoring_errors(Pending& pending);
  void finish_exchange(const OperationContext& context,
                       const std::shared_ptr<Mailbox::Batch>& batch);
  void watch();

  Members members_;
  std::vector<std::optional<PeerConnection>> connections_;
  ShmGroup group_;
  std::shared_ptr<Segments> segments_;
  FindSegment find_;
  Mailbox mailbox_;
  std::uint64_t operations_ = 0;
  // In order; finished, at the latest, by later ones that wait for it.
  std::deque<std::shared_ptr<Pending>> pending_;
  std::vector<std::shared_ptr<Pending>> pending_exchanges_;
  std::unique_ptr<WorkQueue> queue_;
  Work last_queued_;
  Work last_to_announce_;  // of those that are announced there
  std::unique_ptr<WorkQueue> exchange_queue_;
  UniqueFd stop_watching_;
  std::thread watcher_;
};

}  // namespace troika::shm
