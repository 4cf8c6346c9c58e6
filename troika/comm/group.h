// A Group is the ranks along one axis of the mesh, and the collectives among them. It is a small
// value: copying it copies a handle. The engine behind it (gloo/, shm/, mpi/, nccl/, fake/)
// implements GroupEngine; an engine that is not built is refused by name.
//
// Every operation takes a label and a deadline. It is written to the flight recorder when it starts
// and when it ends, so that peers and the launcher can read what a dead or stopped rank last did.
//
// All operations are collective: every member calls them in the same order with matching sizes,
// from one thread at a time. Tensors are contiguous, of the host or of a device (whose tensors go
// through the host's memory where the engine does not take them), and of fp64, fp32, bf16, fp16,
// int64, int32 or uint8; anything else throws UsageError naming operation, label and what is wrong.
// Gradients do not flow through an operation. A group of one does nothing in place and copies
// otherwise.
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
#include <troika/device/device.h>
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

// The name of an operation in messages and records, and its deadline.
struct Call {
  std::string_view label;
  Deadline deadline;
  // Set by Group, for its engine.
  OperationRecord record = {};
  OperationEntry* entry = nullptr;  // of use while the engine is being called
  // What the tensors' device has to come to before: the stream of the caller. Set for engines of
  // devices, whose operations may start in another thread.
  DeviceEvent after = {};
  // Writes the operation's entry in the record: the operation is under way. Called by an engine
  // whose writes_entries() is true.
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

  // Makes a Work that is already done.
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

// The interface that an engine implements; callers use Group. Ranks here are positions in the
// group, which has at least two members. Arguments have been checked and `counts` is never empty;
// tensors do not require gradients. `call.record` takes the bytes that this member sends to others
// and how often it waits for them. Its signature is equal on all members that are in the same
// operation, and its place counts the collectives of the group. Group writes the record before it
// calls the engine, or, where writes_entries() is true, the engine does when it calls
// `call.entered()`.
class GroupEngine {
 public:
  virtual ~GroupEngine() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual bool accepts(at::DeviceType device) const {
    return device == at::DeviceType::CPU;
  }
  // Returns whether every operation calls `call.entered()`, before it waits for others or counts
  // anything in the record. The engine may have told the others already: the record is then written
  // while they are on their way. Group writes the record of an operation that throws before.
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
  // Returns zeroed bytes, 64-byte aligned: memory that peers can read where the engine can, else
  // ordinary memory.
  [[nodiscard]] virtual at::Tensor allocate(std::size_t bytes);
};

// The observers of every operation; each may be null. `trace` gets spans on its communication
// track. `fault_injector` is called before an operation is entered.
struct GroupObservers {
  std::shared_ptr<Recorder> recorder;
  std::shared_ptr<Trace> trace;
  std::shared_ptr<FaultInjector> fault_injector;
};

// Collective: makes the engine that carries tensors of a device. Null where there is none for it;
// they then go through the host's memory.
using MakeDeviceEngine = std::function<std::shared_ptr<GroupEngine>(at::Device)>;

struct HostGroups;
// Collective: makes the groups of Group::by_host().
using MakeHostGroups = std::function<HostGroups()>;

class Group {
 public:
  // Makes a group of one.
  Group() = default;
  // `ranks` are the members' world ranks; `index` is this process's position among them. `name`
  // names the group in messages. `engine` is null for a group of one. `identity` tells the group
  // from others in records (OperationFacts::group). engines.h makes groups. `make_device_engine` is
  // called for the first tensor that `engine` does not take, on all members; `make_host_groups` by
  // by_host(). Both may be empty.
  Group(std::string name, std::vector<int> ranks, int index, std::uint64_t generation,
        std::shared_ptr<GroupEngine> engine, std::uint32_t identity, GroupObservers observers,
        MakeDeviceEngine make_device_engine = {}, MakeHostGroups make_host_groups = {});

  [[nodiscard]] int rank() const { return index_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  // Returns the members' world ranks, by position.
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // Returns the number of rebuilds of the job: groups of different generations never talk to each
  // other.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  // Returns "gloo", "shm", ...; "none" for a group of one.
  [[nodiscard]] std::string_view engine_name() const;
  // Returns the engine that carries tensors of `device`: "nccl", or "shm, staged" where they go
  // through the host. Call it after such an operation.
  [[nodiscard]] std::string engine_name(at::Device device) const;
  // Collective: returns whether tensors of `device` go without the host's memory: the engine takes
  // them, or there is one that does, which this makes. True for a group of one.
  [[nodiscard]] bool carries(at::Device device) const;
  // Returns the bytes that this rank has sent or reduced through this group: the sum of its inputs'
  // sizes. What an algorithm puts on the wire for them is in docs/engines.md. Zero for a group of
  // one.
  [[nodiscard]] std::uint64_t input_bytes() const;
  // Collective: returns the members by host, as groups that are made at the first call and end with
  // this one. A group of one, and one that exchanges nothing, is on one host. Throws
  // RendezvousError.
  [[nodiscard]] const HostGroups& by_host() const;

  // Reduces in place. Average divides the sum by size().
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) const;
  // Reduces `input`, which holds sum(counts) elements; member i's `output` gets counts[i] of them.
  // Empty `counts`: equal parts. `output` may be this member's part of `input`.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                      const Call& call, std::span<const std::int64_t> counts = {}) const;
  // Gathers counts[i] elements from each member i; `output` holds them all, in order. Empty
  // `counts`: equal parts. `input` may be this member's part of `output`.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, const Call& call,
                  std::span<const std::int64_t> counts = {}) const;
  // Sends input_counts[i] elements to member i, and receives output_counts[i] from it.
  Work all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                  const at::Tensor& input, std::span<const std::int64_t> input_counts,
                  const Call& call) const;
  // Copies the tensor of member `root` to all members, in place.
  Work broadcast(const at::Tensor& tensor, int root, const Call& call) const;
  // Gathers all members' `input` on `root`. `output` ([size(), ...] of `input`) is used there only,
  // and may be undefined elsewhere.
  Work gather(const at::Tensor& output, const at::Tensor& input, int root, const Call& call) const;
  // Scatters `input` from `root`. `input` ([size(), ...] of `output`) is used there only, and may
  // be undefined elsewhere.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root, const Call& call) const;
  // Posts all sends and receives together, before it returns; nothing is assumed about buffering.
  // Only the members that transfers name take part. Transfers between the same pair match in order,
  // with equal sizes; those of a member with itself are copies. A received tensor must share no
  // memory with the rest.
  Work exchange(std::span<const Transfer> transfers, const Call& call) const;
  Work barrier(const Call& call) const;

  // Ends every operation under way, and every later one, with PeerError. `reason` is a line, and a
  // second one is the hint. Any thread.
  void abort(const std::string& reason) const;
  // Returns zeroed bytes, 64-byte aligned, that peers can read where the engine can; of a device,
  // the device's. Throws StorageError if the host has not so much memory.
  [[nodiscard]] at::Tensor allocate(std::size_t bytes, at::Device device = at::kCPU) const;

 private:
  struct Shared;  // engine, observers and counters, common to all copies
  [[nodiscard]] const GroupEngine* engine() const;

  std::string name_ = "self";
  std::vector<int> ranks_ = {0};
  int index_ = 0;
  std::uint64_t generation_ = 0;
  std::shared_ptr<Shared> shared_;
};

// The members of a group by host. On one host, both are groups of one.
struct HostGroups {
  int hosts = 1;
  // The smallest number of members on any host: each host has a member of every lower local rank.
  int common_local_ranks = 1;
  int local_rank = 0;  // this member's index among those of its host
  Group inside;        // the members of this host, by local rank
  Group between;       // those of the same local rank; a group of one where a host has none
};

}  // namespace troika
