// The engine shm: collectives between the ranks of one host, over shared memory. Small operations,
// in one step, are announced by the caller's thread when they start and finished by whoever waits
// for them. In the others members wait for what each of them does halfway, so they go on in a
// thread of their own where nobody waits (lane.h), after what can be done at once.
#pragma once

#include <troika/base/function_ref.h>
#include <troika/base/text.h>
#include <troika/comm/diagnosis.h>
#include <troika/comm/group.h>
#include <troika/comm/lane.h>
#include <troika/comm/members.h>
#include <troika/comm/shm/collective.h>
#include <troika/comm/shm/mailbox.h>
#include <troika/comm/shm/segments.h>
#include <troika/comm/witness.h>

#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace troika::shm {

class Engine final : public GroupEngine {
 public:
  Engine(Members members, Attached attached, const Shape& shape, Party::Patience patience);
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
  struct Named {
    std::string_view operation;  // a literal
    std::string_view label;
    Deadline deadline;
    OperationRecord record;
    // "all_reduce 'loss'"
    [[nodiscard]] std::string text() const { return std::string(operation) + " " + quote(label); }
  };
  static Named named(std::string_view operation, const Call& call) {
    return {operation, call.label, call.deadline, call.record};
  }
  // For an operation that outlives the call: its label is the caller's.
  class Kept {
   public:
    explicit Kept(const Named& named) : label_(named.label), named_(named) {}
    [[nodiscard]] Named get() const {
      return {named_.operation, label_, named_.deadline, named_.record};
    }

   private:
    std::string label_;
    Named named_;
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
  [[nodiscard]] bool announcing_waits(std::uint64_t number, Place place);
  void announce(Collective& collective, const Named& named);
  // Of short ones, whoever waits for them before long saves the change of thread.
  Work in_lane(Lane::Job job, const Kept& name);
  // Runs `body` and turns what it throws into the user's error, after which the group is broken. An
  // operation that all have entered ends well even if a peer has left since.
  void run(const Named& named, FunctionRef<void()> body);
  [[nodiscard]] std::exception_ptr overdue(const Named& named);
  // "all_reduce 'gradients' on axis data".
  [[nodiscard]] std::string place_of(const Named& named) const;
  // Gives others a moment to say why they gave up, and throws PeerError if they do: this group's
  // members, and `held_up` also in another group.
  void await_reason(const Named& named, int held_up);
  [[noreturn]] void tell_reason(const Named& named, int member, const Reason& reason);
  // Throws what the user is told of an operation that is late, or that a peer has broken.
  [[noreturn]] void tell_late(const Named& named, const std::vector<int>& missing);
  [[noreturn]] void tell_broken(const Named& named, const Broken& error);
  // What holds the operation up.
  [[nodiscard]] Diagnosis examine(const Named& named, std::vector<int> suspects);
  [[nodiscard]] Diagnosis examine_mismatch(const Named& named, const Mismatch& error);
  [[nodiscard]] std::string death_of(int member);
  // Breaks the group; the tensors of this member are left alone from then on.
  void give_up(const Reason& reason);
  static void settle(Pending& pending);
  void finish_exchange(const Named& named, const std::shared_ptr<Mailbox::Batch>& batch);
  void watch();

  Members members_;
  std::vector<std::optional<Wire>> wires_;
  Party party_;
  std::shared_ptr<Segments> segments_;
  FindSegment find_;
  Mailbox mailbox_;
  std::uint64_t operations_ = 0;
  // In order; finished, at the latest, by later ones that wait for it.
  std::deque<std::shared_ptr<Pending>> pending_;
  std::vector<std::shared_ptr<Pending>> pending_exchanges_;
  std::unique_ptr<Lane> lane_;
  Work last_in_lane_;
  Work last_to_announce_;  // of those that are announced there
  std::unique_ptr<Lane> exchange_lane_;
  UniqueFd stop_watching_;
  std::thread watcher_;
};

}  // namespace troika::shm
