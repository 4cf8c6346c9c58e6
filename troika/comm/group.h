// A Group is the ranks along one axis of the mesh, and the collectives among them. It is a small
// value: copying it copies a handle. The engine behind it (gloo/, shm/, mpi/, nccl/, fake/)
// implements GroupEngine; an engine that is not built is refused by name.
//
// Every operation takes a label and a deadline. It is written to the flight recorder when it starts
// and when it ends, so that peers and the launcher can read what a dead or stopped rank last did.
//
// All operations are collective: every member calls them in the same order with matching sizes,
// from one thread at a time. Tensors are contiguous, on the CPU unless the engine says otherwise,
// and of fp64, fp32, bf16, fp16, int64, int32 or uint8; anything else throws UsageError naming
// operation, label and what is wrong. Gradients do not flow through an operation. A group of one
// does nothing in place and copies otherwise.
//
// From the call to the end of wait() a tensor belongs to the operation: what it gives may be read,
// and what it takes may be written, at any time between. Labels are for people: two operations of
// the same kind and sizes go together whatever they are called.
//
// After a DeadlineError, a PeerError or abort() the group is unusable: every later call throws
// PeerError. Operations that were under way may hold their tensors until the group is gone.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>
#include <troika/observe/recorder.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

class FaultInjector;
class Trace;

// Average divides the sum by size(); it is refused for integers. Integer sums wrap around. Max and
// min hand on a NaN. fp16 and bf16 are summed in fp32 and rounded once.
enum class ReduceOp { kSum, kAverage, kMax, kMin };

// What an operation is called in messages and records, and by when it must be done.
struct Call {
  std::string_view label;
  Deadline deadline;
  // Filled in by Group, for its engine.
  OperationRecord record = {};
  OperationEntry* entry = nullptr;  // of use while the engine is being called
  // Of an engine that writes entries: the operation is under way.
  void entered() const {
    if (entry) entry->write();
  }
};

// An operation under way. A small value; the operation goes on if all handles are dropped.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    [[nodiscard]] virtual bool done() = 0;
    virtual void wait() = 0;
    virtual void on_done(std::function<void(std::exception_ptr)> callback) = 0;
  };

  // Already done.
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  [[nodiscard]] bool done() const { return !state_ || state_->done(); }
  // Blocks until the result is there. Throws DeadlineError or PeerError; the group is unusable
  // then.
  void wait() const {
    if (state_) state_->wait();
  }
  // Calls `callback` once, with null or the error, by the thread that completes the operation and
  // before done() holds; at once if it is done. It must neither block nor throw.
  void on_done(std::function<void(std::exception_ptr)> callback) const {
    if (state_) {
      state_->on_done(std::move(callback));
    } else {
      callback(nullptr);
    }
  }

 private:
  std::shared_ptr<State> state_;
};

// One leg of an exchange: `tensor` goes to, or comes from, member `peer` of the group.
struct Transfer {
  enum class Direction { kSend, kReceive };
  Direction direction;
  int peer;
  at::Tensor tensor;
};

// What an engine implements. Ranks here are positions in the group, of which there are at least
// two. Arguments have been checked and `counts` is never empty; tensors do not require gradients.
// `call.record` takes the bytes that this member sends to others and how often it waits for them;
// its signature is equal on all members that are in the same operation, and its place counts the
// collectives of the group. It is written down before the engine is called, or, if the engine says
// so, when it calls `call.entered()`. Callers use Group.
class GroupEngine {
 public:
  virtual ~GroupEngine() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual bool accepts(at::DeviceType device) const {
    return device == at::DeviceType::CPU;
  }
  // Whether every operation calls `call.entered()`, before it waits for others or counts anything
  // in the record; others may have been told already, and the record is written while they are on
  // their way. Of one that throws before, Group writes it.
  [[nodiscard]] virtual bool writes_entries() const { return false; }
  virtual Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) = 0;
  virtual Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                              std::span<const std::int64_t> counts, ReduceOp op,
                              const Call& call) = 0;
  virtual Work all_gather(const at::Tensor& output, const at::Tensor& input,
                          std::span<const std::int64_t> counts, const Call& call) = 0;
  virtual Work all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                          const at::Tensor& input, std::span<const std::int64_t> input_counts,
                          const Call& call) = 0;
  virtual Work broadcast(const at::Tensor& tensor, int root, const Call& call) = 0;
  virtual Work gather(const at::Tensor& output, const at::Tensor& input, int root,
                      const Call& call) = 0;
  virtual Work scatter(const at::Tensor& output, const at::Tensor& input, int root,
                       const Call& call) = 0;
  virtual Work exchange(std::span<const Transfer> transfers, const Call& call) = 0;
  virtual Work barrier(const Call& call) = 0;
  // Ends every operation under way, and every later one, with PeerError. `reason` is a line, and a
  // second one is the hint. Any thread.
  virtual void abort(const std::string& reason) = 0;
  // Memory that peers can read where the engine can, 64-byte aligned, zeroed; else ordinary memory.
  [[nodiscard]] virtual at::Tensor allocate(std::size_t bytes);
};

// Who is told of every operation; each may be null. `trace` gets spans on its communication track,
// `fault_injector` is told before an operation is entered.
struct GroupObservers {
  std::shared_ptr<Recorder> recorder;
  std::shared_ptr<Trace> trace;
  std::shared_ptr<FaultInjector> fault_injector;
};

class Group {
 public:
  // A group of one.
  Group() = default;
  // `ranks` are the members' world ranks; `index` is this process's position among them. `name`
  // names the group in messages. `engine` is null for a group of one. `identity` tells the group
  // from others in records (OperationFacts::group). engines.h makes groups.
  Group(std::string name, std::vector<int> ranks, int index, std::uint64_t generation,
        std::shared_ptr<GroupEngine> engine, std::uint32_t identity, GroupObservers observers);

  [[nodiscard]] int rank() const { return index_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  // World ranks of the members, by position.
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // Counts the rebuilds of the job: groups of different generations never talk to each other.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  // "gloo", "shm", ...; "none" for a group of one.
  [[nodiscard]] std::string_view engine_name() const;
  // Bytes that this rank has sent or reduced through this group: the sum of its inputs' sizes. What
  // an algorithm puts on the wire for them is in docs/engines.md. Zero for a group of one.
  [[nodiscard]] std::uint64_t input_bytes() const;

  // In place. Average divides the sum by size().
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) const;
  // `input` holds sum(counts) elements; member i's `output` gets counts[i] of them. Empty `counts`:
  // equal parts. `output` may be this member's part of `input`.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                      const Call& call, std::span<const std::int64_t> counts = {}) const;
  // Member i gives counts[i] elements; `output` holds them all, in order. Empty `counts`: equal
  // parts. `input` may be this member's part of `output`.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, const Call& call,
                  std::span<const std::int64_t> counts = {}) const;
  // Sends input_counts[i] elements to member i, and receives output_counts[i] from it.
  Work all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                  const at::Tensor& input, std::span<const std::int64_t> input_counts,
                  const Call& call) const;
  // In place, from member `root`.
  Work broadcast(const at::Tensor& tensor, int root, const Call& call) const;
  // `output` ([size(), ...] of `input`) is used on `root` only, and may be undefined elsewhere.
  Work gather(const at::Tensor& output, const at::Tensor& input, int root, const Call& call) const;
  // `input` ([size(), ...] of `output`) is used on `root` only, and may be undefined elsewhere.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root, const Call& call) const;
  // Posts all sends and receives together, before it returns; nothing is assumed about buffering.
  // Only those named take part. Transfers between the same pair match in order, with equal sizes;
  // those of a member with itself are copies. What is received shares no memory with the rest.
  Work exchange(std::span<const Transfer> transfers, const Call& call) const;
  Work barrier(const Call& call) const;

  // Ends every operation under way, and every later one, with PeerError. `reason` is a line, and a
  // second one is the hint. Any thread.
  void abort(const std::string& reason) const;
  // Zeroed bytes, 64-byte aligned, that peers can read where the engine can. Throws StorageError
  // where there is not so much memory.
  [[nodiscard]] at::Tensor allocate(std::size_t bytes) const;

 private:
  struct Shared;  // engine, observers and counters, common to all copies
  [[nodiscard]] const GroupEngine* engine() const;

  std::string name_ = "self";
  std::vector<int> ranks_ = {0};
  int index_ = 0;
  std::uint64_t generation_ = 0;
  std::shared_ptr<Shared> shared_;
};

}  // namespace troika
