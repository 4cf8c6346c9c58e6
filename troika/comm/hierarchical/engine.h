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

#include <troika/comm/blocking_engine.h>
#include <troika/comm/hierarchical/hosts.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troika::detail {

class HierarchyEngine final : public BlockingEngine,
                              public std::enable_shared_from_this<HierarchyEngine> {
 public:
  struct SubEngines {
    std::shared_ptr<Recorder> recorder;   // goes last: the engines write to it; may be null
    std::shared_ptr<GroupEngine> inside;  // among the members of this host; null for one alone
    std::shared_ptr<GroupEngine>
        between;                       // among the leaders with this local index; null elsewhere
    std::shared_ptr<GroupEngine> all;  // among all, for what is not reduced
  };
  HierarchyEngine(std::string name, Members members, Hosts hosts, SubEngines engines,
                  AbortStore abort_store);
  ~HierarchyEngine() override;

  Work exchange(std::span<const Transfer> transfers, const Call& call) override;
  [[nodiscard]] at::Tensor allocate(std::size_t bytes) override;

 private:
  class CombinedWork;

  // The algorithms (algorithms.cc). Counts are in elements.
  void run_all_reduce(const at::Tensor& tensor, ReduceOp op,
                      const OperationContext& context) override;
  void reduce_between(const at::Tensor& shard, const at::Tensor& rounded, ReduceOp op,
                      const OperationContext& context);
  void run_reduce_scatter(const at::Tensor& output, const at::Tensor& input, Counts counts,
                          ReduceOp op, const OperationContext& context) override;
  void distribute_parts(const at::Tensor& output, const at::Tensor& piece, Range own_part,
                        std::span<const Range> pieces, std::span<const Range> parts,
                        const OperationContext& context);
  void run_all_gather(const at::Tensor& output, const at::Tensor& input, Counts counts,
                      const OperationContext& context) override;
  void run_broadcast(const at::Tensor& tensor, int root, const OperationContext& context) override;
  void run_all_to_all(const at::Tensor& output, Counts output_counts, const at::Tensor& input,
                      Counts input_counts, const OperationContext& context) override;
  void run_gather(const at::Tensor& output, const at::Tensor& input, int root,
                  const OperationContext& context) override;
  void run_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                   const OperationContext& context) override;
  void run_barrier(const OperationContext& context) override;

  // Returns the call of a step of an operation: the later ones have more time.
  enum class Step { kFirst, kBetween, kLast };
  [[nodiscard]] static Call call_of(const OperationContext& context, Step step);
  // Returns the call of a step inside the host, whose bytes are not recorded.
  [[nodiscard]] static Call call_inside(const OperationContext& context, Step step);
  [[nodiscard]] Deadline end_of(const Deadline& deadline) const override;

  void translate(const OperationContext& context) override;
  void break_connections(const Failure& reason) override;

  // Starts an operation inside this host, and waits for it. Does nothing for a member alone.
  template <class Start>
  void inside(const Start& start);
  // Returns how many elements each member of this host takes on as a leader.
  [[nodiscard]] std::vector<std::int64_t> shards(std::int64_t elements, std::int64_t bytes) const;
  [[nodiscard]] int local_index() const { return hosts_.local_index_of(index()); }
  [[nodiscard]] int host() const { return hosts_.host_of(index()); }
  [[nodiscard]] const std::vector<int>& neighbours() const { return hosts_.members(host()); }
  [[nodiscard]] int size() const { return static_cast<int>(hosts_.by_host().size()); }

  Hosts hosts_;
  SubEngines engines_;
  std::mutex inside_mutex_;  // operations of the queue and exchanges start at any time
};

}  // namespace troika::detail
