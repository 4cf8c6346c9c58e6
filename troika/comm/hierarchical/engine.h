// The engine across hosts, made of others: shared memory inside each host, and between hosts one
// that sends messages. A reduction first runs inside each host; then only the partial result of
// each host travels, cut among as many of its members (leaders) as the smallest host has; then it
// is broadcast inside. With H hosts and N bytes a host sends
// - in an all_reduce 2 (H-1)/H N, or (H-1) N if it is small enough for one step (16-bit floats: 1.5
//   and 2 times that, as reduce.h promises one rounding);
// - in a reduce_scatter (H-1)/H N (16-bit floats: twice that);
// - in an all_gather (H-1) times what its members give;
// - in a broadcast what a binomial tree of hosts does;
// - otherwise what is meant for other hosts, straight to its member.
//
// The reduction is in the order of members inside a host, then in the order of hosts: the same bits
// on every member and in every run, but other bits than in the order of all members.
//
// These bytes, and the waits for other hosts, are what the recorder gets; not those inside a host.
//
// Each step of an operation has a little more time than the one before, so that the member that
// waits for the culprit itself is the first to fail, and names it to the others.
#pragma once

#include <troika/comm/failure/abort_watcher.h>
#include <troika/comm/group.h>
#include <troika/comm/hierarchical/hosts.h>
#include <troika/comm/members.h>
#include <troika/comm/p2p/work_queue.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troika::detail {

class HierarchyEngine final : public GroupEngine,
                              public std::enable_shared_from_this<HierarchyEngine> {
 public:
  struct SubEngines {
    std::shared_ptr<Recorder> recorder;   // goes last: the engines write to it; may be null
    std::shared_ptr<GroupEngine> inside;  // among the members of this host; null for one alone
    std::shared_ptr<GroupEngine>
        between;                       // among the leaders with this local index; null elsewhere
    std::shared_ptr<GroupEngine> all;  // among all, for what is not reduced
  };
  // `name` is a literal.
  HierarchyEngine(std::string_view name, Members members, Hosts hosts, SubEngines engines,
                  AbortStore abort_store);
  ~HierarchyEngine() override;

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
  [[nodiscard]] at::Tensor allocate(std::size_t bytes) override;

 private:
  class CombinedWork;
  // An operation as its user knows it.
  struct OperationContext {
    std::string text;   // "all_reduce 'gradients'"
    std::string label;  // "gradients"
    Deadline deadline;
    OperationRecord record;
    // For a step of it: the later ones have more time.
    enum class Step { kFirst, kBetween, kLast };
    [[nodiscard]] Call step(Step step) const;
    // The same for a step inside the host, whose bytes are not recorded.
    [[nodiscard]] Call step_inside(Step step) const;
  };
  using Step = OperationContext::Step;
  static OperationContext context_of(std::string_view operation, const Call& call);

  Work collective(std::string_view operation, const Call& call,
                  std::function<void(const OperationContext&)> body);
  // Runs `body`; what it throws becomes the user's error, after which the group is broken.
  void run(const OperationContext& context, const std::function<void()>& body);
  void throw_if_broken(const OperationContext& context);
  [[nodiscard]] std::exception_ptr overdue(const OperationContext& context);
  // Ends everything, here and at the peers, unless that was done before.
  void fail(const AbortReason& reason);

  // The blocking algorithms (algorithms.cc); they run in the queue. Counts are in elements.
  void all_reduce_across_hosts(const at::Tensor& tensor, ReduceOp op,
                               const OperationContext& context);
  void reduce_between(const at::Tensor& shard, const at::Tensor& rounded, ReduceOp op,
                      const OperationContext& context);
  void reduce_scatter_across_hosts(const at::Tensor& output, const at::Tensor& input,
                                   std::span<const std::int64_t> counts, ReduceOp op,
                                   const OperationContext& context);
  void distribute_parts(const at::Tensor& output, const at::Tensor& piece, Range own_part,
                        std::span<const Range> pieces, std::span<const Range> parts,
                        const OperationContext& context);
  void all_gather_across_hosts(const at::Tensor& output, const at::Tensor& input,
                               std::span<const std::int64_t> counts,
                               const OperationContext& context);
  void broadcast_across_hosts(const at::Tensor& tensor, int root, const OperationContext& context);
  void all_to_all_across_hosts(const at::Tensor& output,
                               std::span<const std::int64_t> output_counts, const at::Tensor& input,
                               std::span<const std::int64_t> input_counts,
                               const OperationContext& context);
  void barrier_across_hosts(const OperationContext& context);
  // Starts an operation inside this host, and waits for it; nothing for a member alone.
  template <class Start>
  void inside(const Start& start);
  // What each member of this host takes on as a leader.
  [[nodiscard]] std::vector<std::int64_t> shards(std::int64_t elements, std::int64_t bytes) const;
  [[nodiscard]] int index() const { return members_.index; }
  [[nodiscard]] int local_index() const { return hosts_.local_index_of(index()); }
  [[nodiscard]] int host() const { return hosts_.host_of(index()); }
  [[nodiscard]] const std::vector<int>& neighbours() const { return hosts_.members(host()); }
  [[nodiscard]] int size() const { return static_cast<int>(hosts_.by_host().size()); }

  std::string_view name_;
  Members members_;
  Hosts hosts_;
  SubEngines engines_;
  AbortStore abort_store_;
  std::mutex inside_mutex_;  // operations of the queue and exchanges start at any time
  std::mutex mutex_;
  std::optional<AbortReason> broken_;  // guarded by the mutex
  std::unique_ptr<WorkQueue> queue_;
  // Those who wait inside a host hear by it of what happens between others.
  std::unique_ptr<AbortWatcher> abort_watcher_;
};

}  // namespace troika::detail
